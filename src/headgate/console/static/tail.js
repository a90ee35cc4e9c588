/** A live tail: reads a broker's events as they come, keeps the newest, and says so some times a second at most. */
import { lines } from "./api.js";
import { eventsPath } from "./parts/broker_field.js";
import { searchOf } from "./router.js";

export const KEPT_MAX = 500;
const KEPT_CHARACTERS_MAX = 32e6; // of all their data
const TOLD_EVERY_MS = 200;
const AGAIN_MS = 2000;

/**
 * @typedef {Object} Seen
 * @property {{place: string, event: any, characters: number}[]} events The newest first, at most KEPT_MAX.
 * @property {number} matched Events that came.
 * @property {number} scanned Events that the server scanned.
 * @property {number} skipped Chunks that it passed over unread.
 * @property {boolean} isAtEnd Whether everything stored was scanned.
 * @property {string} position Where in every partition the server is.
 * @property {Error|null} error
 */

/** Those that stay, of events with the newest first: one at least. */
function kept(events) {
  let characters = 0;
  const end = events.findIndex((one, index) => (characters += one.characters) > KEPT_CHARACTERS_MAX && index > 0);
  return events.slice(0, end < 0 ? KEPT_MAX : Math.min(end, KEPT_MAX));
}

/**
 * Follows until the signal says stop; goes on where it was when the connection breaks.
 * @param {{broker: string, from: string, filter: string, filterValue: string}} wanted
 * @param {(seen: Seen) => void} tell
 * @param {AbortSignal} signal
 */
export async function follow({ broker, from, filter, filterValue }, tell, signal) {
  const seen = { events: [], matched: 0, scanned: 0, skipped: 0, isAtEnd: false, position: "", error: null };
  const before = { scanned: 0, skipped: 0 };
  const reached = new Map(); // by partition: the offset of the last event that came
  const isNew = (position) => {
    const [partition, offset] = position.split(":").map(Number);
    if (offset <= (reached.get(partition) ?? -1)) return false;
    reached.set(partition, offset);
    return true;
  };
  let place = from;
  let toldAt = 0;
  let timer = 0;
  const say = () => {
    toldAt = performance.now();
    timer = 0;
    if (!signal.aborted) tell({ ...seen, events: seen.events.slice() });
  };
  const soon = () => {
    if (!timer) timer = setTimeout(say, Math.max(0, toldAt + TOLD_EVERY_MS - performance.now()));
  };
  signal.addEventListener("abort", () => clearTimeout(timer));
  while (!signal.aborted) {
    const query = { follow: "true", filter, filterValue, ...(/^last:\d+$/.test(place) ? { last: place.slice(5) } : { from: place }) };
    try {
      for await (const values of lines(eventsPath(broker) + searchOf(query), signal)) {
        seen.error = null;
        const found = [];
        for (const value of values) {
          if (value.specversion) {
            const { hgposition, ...event } = value;
            if (!isNew(hgposition)) continue; // it had come when the connection broke
            const text = event.data === undefined ? (event.data_base64 ?? "") : JSON.stringify(event.data);
            found.push({ place: hgposition, event, characters: text.length });
          } else if (value.progress) {
            place = seen.position = value.progress.position;
            seen.scanned = before.scanned + value.progress.eventsScanned;
            seen.skipped = before.skipped + value.progress.chunksSkipped;
            seen.isAtEnd = value.progress.atEnd;
          } else if (value.error) throw Object.assign(new Error(value.error.message ?? value.error), { isFinal: true });
        }
        seen.matched += found.length;
        if (found.length) seen.events = kept([...found.reverse(), ...seen.events]);
        soon();
      }
    } catch (error) {
      if (signal.aborted) return;
      seen.error = error;
      say();
      if (error.isFinal || (error.status >= 400 && error.status < 500 && error.status !== 429)) return;
    }
    before.scanned = seen.scanned;
    before.skipped = seen.skipped;
    await new Promise((done) => setTimeout(done, AGAIN_MS));
  }
}
