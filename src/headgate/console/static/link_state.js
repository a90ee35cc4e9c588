/** A page's whole state as a short text for the address: JSON, deflated, base64url. */

const through = async (bytes, stream) => new Uint8Array(await new Response(new Blob([bytes]).stream().pipeThrough(stream)).arrayBuffer());
const BYTES_MAX = 2 << 20;

/** @returns {Promise<string>} */
export async function packed(value) {
  const bytes = await through(new TextEncoder().encode(JSON.stringify(value)), new CompressionStream("deflate-raw"));
  let text = "";
  for (const byte of bytes) text += String.fromCharCode(byte);
  return btoa(text).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
}

/** What `packed` was given; null where the text is none of its texts. */
export async function unpacked(text) {
  try {
    const bytes = Uint8Array.from(atob(text.replaceAll("-", "+").replaceAll("_", "/")), (letter) => letter.charCodeAt(0));
    const reader = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate-raw")).getReader();
    const pieces = [];
    let size = 0;
    for (;;) {
      const { value, done } = await reader.read();
      if (done) break;
      size += value.length;
      if (size > BYTES_MAX) {
        reader.cancel();
        return null; // a link of somebody else's must not fill the memory
      }
      pieces.push(value);
    }
    return JSON.parse(await new Blob(pieces).text());
  } catch {
    return null;
  }
}
