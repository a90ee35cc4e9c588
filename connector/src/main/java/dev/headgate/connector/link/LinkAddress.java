package dev.headgate.connector.link;

import java.io.Serializable;

/**
 * Where a run's matches go, and what its connections say of themselves (docs/spec/match-link.md).
 *
 * @param token 32 bytes that both sides were given
 * @param partitions how many partitions the run reads
 */
public record LinkAddress(String host, int port, byte[] token, long run, long generation, int partitions)
    implements Serializable {
  public static final int TOKEN_BYTES = 32;

  public LinkAddress {
    if (token.length != TOKEN_BYTES) {
      throw new IllegalArgumentException("option linkToken needs " + TOKEN_BYTES + " bytes, it has " + token.length);
    }
  }

  /** Without the token: this may end in a log. */
  @Override
  public String toString() {
    return host + ":" + port + " run " + run;
  }
}
