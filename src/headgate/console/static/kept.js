/** Texts that the browser keeps for the console; in one that keeps nothing they hold until the page is left. */

const refused = new Map();

export function recall(key) {
  try {
    return refused.get(key) ?? localStorage.getItem(key) ?? "";
  } catch {
    return "";
  }
}

/** Whether the browser keeps it. */
export function keep(key, text) {
  try {
    localStorage.setItem(key, text);
    return refused.delete(key) || true;
  } catch {
    refused.set(key, text);
    return false;
  }
}
