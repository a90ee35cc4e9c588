/** What pages draw with, from one place: Preact's functions and the hooks that pages share. */
import { html, render, useCallback, useEffect, useMemo, useRef, useState } from "./vendor/preact-htm.js";
import { get, gone } from "./api.js";
import { searchOf } from "./router.js";
import { useStore } from "./store.js";

const ANSWER_MS_MAX = 30_000; // a server that stands still is said to be gone
const GONE = new Set([403, 404]); // what is not there, or not for this user, is not shown any more

export { html, render, useCallback, useEffect, useMemo, useRef, useState };

/**
 * What the API says at a path, asked again every `everyMs` as long as the page is looked at.
 * @param {string|null} path null: nothing is asked.
 * @param {Object<string, string|number|undefined>} query
 * @param {{everyMs?: number, keep?: boolean, accept?: string}} options keep: show the old answer until that of another query is there.
 * @returns {{data: any, error: Error|null, reload: () => void, isOld: boolean}}
 */
export function useData(path, query = {}, { everyMs = 0, keep = false, accept } = {}) {
  const key = path === null ? null : path + searchOf(query);
  const [answer, setAnswer] = useState({ key: null, data: null, error: null });
  const [round, setRound] = useState(0);
  const mustSignIn = useStore((state) => state.mustSignIn);
  useEffect(() => {
    if (key === null || mustSignIn) return undefined;
    const stop = new AbortController();
    let timer = 0;
    async function load() {
      timer = 0;
      const late = new AbortController();
      const end = () => late.abort();
      const patience = setTimeout(end, ANSWER_MS_MAX);
      stop.signal.addEventListener("abort", end, { once: true });
      try {
        const data = await get(key, { signal: late.signal, accept });
        setAnswer({ key, data, error: null });
      } catch (error) {
        if (stop.signal.aborted) return;
        const said = late.signal.aborted ? gone() : error;
        setAnswer((old) => ({ key, data: old.key === key && !GONE.has(said.status) ? old.data : null, error: said }));
      } finally {
        clearTimeout(patience);
        stop.signal.removeEventListener("abort", end);
      }
      if (everyMs && !stop.signal.aborted) timer = setTimeout(load, document.hidden ? 10 * everyMs : everyMs);
    }
    /** Who looks again at a page that was hidden sees what is now, not what was. */
    function lookAgain() {
      if (document.hidden || !timer) return;
      clearTimeout(timer);
      load();
    }
    document.addEventListener("visibilitychange", lookAgain);
    load();
    return () => {
      stop.abort();
      clearTimeout(timer);
      document.removeEventListener("visibilitychange", lookAgain);
    };
  }, [key, everyMs, round, mustSignIn]);
  const isOld = answer.key !== key;
  return {
    data: isOld && !keep ? null : answer.data,
    error: isOld ? null : answer.error,
    reload: () => setRound((number) => number + 1),
    isOld,
  };
}

/** A value that follows another one when that has rested for a while. */
export function useRested(value, ms) {
  const [rested, setRested] = useState(value);
  useEffect(() => {
    const timer = setTimeout(() => setRested(value), ms);
    return () => clearTimeout(timer);
  }, [value, ms]);
  return rested;
}

/** What is typed over a value, and how to type: it begins anew when the value becomes another one. */
export function useTyped(value) {
  const [typed, setTyped] = useState({ over: value, text: value });
  const now = typed.over === value ? typed : { over: value, text: value };
  if (now !== typed) setTyped(now); // not in an effect: that would come after the first letters, and wipe them out
  return [now.text, (text) => setTyped({ over: value, text })];
}

/** Sets the window's title as long as a page is shown. */
export function useTitle(title) {
  useEffect(() => {
    const before = document.title;
    document.title = title ? `${title} · Headgate` : "Headgate";
    return () => {
      document.title = before;
    };
  }, [title]);
}
