/** What a filter says of events: asked whenever the question rests. */
import { OWN, post } from "../api.js";
import { html, useEffect, useRested, useState } from "../ui.js";
import { Status } from "./basics.js";

/** By the outcome of an event: tone and word. */
export const VERDICTS = { true: ["good", "matched"], false: ["no", "not matched"], error: ["warn", "filter error"], invalid: ["warn", "no event"] };

/**
 * Runs a filter on events; one run at a time, the newest wins.
 * @param {any|null} asked What `filters/test` takes; null: nothing is asked.
 */
export function useVerdicts(asked) {
  const [answer, setAnswer] = useState({ key: null, data: null, error: null });
  const key = useRested(asked ? JSON.stringify(asked) : "", 300);
  useEffect(() => {
    const stop = new AbortController();
    let timer = 0;
    async function run() {
      try {
        const data = await post(`${OWN}/filters/test`, key, { signal: stop.signal });
        setAnswer({ key, data, error: null });
      } catch (error) {
        if (stop.signal.aborted) return;
        if (error.status === 429) timer = setTimeout(run, 1000 * (error.retryAfterSeconds ?? 1));
        else setAnswer((old) => ({ key, data: error.status ? null : old.data, error }));
      }
    }
    if (key) run();
    return () => {
      stop.abort();
      clearTimeout(timer);
    };
  }, [key]);
  return key ? answer : { key: null, data: null, error: null };
}

/** How many events had each outcome. */
export const Counts = ({ counts }) =>
  Object.keys(VERDICTS).filter((one) => counts[one]).map((one) => html`<${Status} key=${one} tone=${VERDICTS[one][0]}>${counts[one]} ${VERDICTS[one][1]}<//>`);
