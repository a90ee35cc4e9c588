package dev.headgate.connector.link;

import java.io.Serializable;
import java.util.List;

/**
 * Where a run's matches go, and what its connections say of themselves (docs/spec/match-link.md).
 *
 * @param dispatchers where each dispatcher listens, in the order of their numbers
 * @param token 32 bytes that both sides were given
 * @param partitions how many partitions the run reads
 */
public record LinkAddress(List<Endpoint> dispatchers, byte[] token, long run, long generation, int partitions)
    implements Serializable {
  public static final int TOKEN_BYTES = 32;

  /** Where one dispatcher listens. */
  public record Endpoint(String host, int port) implements Serializable {
    /** Reads `HOST:PORT`. */
    public static Endpoint parse(String text) {
      int colon = text.lastIndexOf(':');
      if (colon < 1) {
        throw new IllegalArgumentException("'" + text + "' is not HOST:PORT");
      }
      return new Endpoint(text.substring(0, colon), Integer.parseInt(text.substring(colon + 1)));
    }

    @Override
    public String toString() {
      return host + ":" + port;
    }
  }

  public LinkAddress {
    if (token.length != TOKEN_BYTES) {
      throw new IllegalArgumentException("option linkToken needs " + TOKEN_BYTES + " bytes, it has " + token.length);
    }
    if (dispatchers.isEmpty()) {
      throw new IllegalArgumentException("option linkEndpoints names no dispatcher");
    }
    dispatchers = List.copyOf(dispatchers);
  }

  /** The number of the dispatcher that owns a target; `headgate.outbox.link_format` is the same in Python. */
  public static int dispatcherOf(int target, int dispatchers) {
    // Fibonacci hashing: neighbours are spread evenly, and the high bits decide, so that no modulus shows a pattern.
    return (int) (Integer.toUnsignedLong(target * 0x9E3779B1) * dispatchers >>> 32);
  }

  /** Without the token: this may end in a log. */
  @Override
  public String toString() {
    return dispatchers + " run " + run;
  }
}
