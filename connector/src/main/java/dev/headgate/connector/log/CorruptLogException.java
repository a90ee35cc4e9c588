package dev.headgate.connector.log;

import java.io.IOException;
import java.nio.file.Path;

/** A log that does not say what its format promises; the message names the file and the byte. */
public final class CorruptLogException extends IOException {
  public CorruptLogException(Path file, long at, String what) {
    super("corrupt log: " + what + ", in " + file + " at byte " + at);
  }
}
