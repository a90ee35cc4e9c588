/** What pages draw with, from one place: Preact's functions and the hooks that pages share. */
import { html, render, useCallback, useEffect, useMemo, useRef, useState } from "./vendor/preact-htm.js";
import { get } from "./api.js";
import { searchOf } from "./router.js";

export { html, render, useCallback, useEffect, useMemo, useRef, useState };

/**
 * What the API says at a path, asked again every `everyMs` as long as the page is looked at.
 * @param {string|null} path null: nothing is asked.
 * @param {Object<string, string|number|undefined>} query
 * @param {{everyMs?: number, keep?: boolean}} options keep: show the old answer until that of another query is there.
 * @returns {{data: any, error: Error|null, reload: () => void, isOld: boolean}}
 */
export function useData(path, query = {}, { everyMs = 0, keep = false } = {}) {
  const key = path === null ? null : path + searchOf(query);
  const [answer, setAnswer] = useState({ key: null, data: null, error: null });
  const [round, setRound] = useState(0);
  useEffect(() => {
    if (key === null) return undefined;
    const stop = new AbortController();
    let timer = 0;
    async function load() {
      try {
        const data = await get(key, { signal: stop.signal });
        setAnswer({ key, data, error: null });
      } catch (error) {
        if (stop.signal.aborted) return;
        setAnswer((old) => ({ key, data: old.key === key ? old.data : null, error }));
      }
      if (everyMs && !stop.signal.aborted) timer = setTimeout(load, document.hidden ? 10 * everyMs : everyMs);
    }
    load();
    return () => {
      stop.abort();
      clearTimeout(timer);
    };
  }, [key, everyMs, round]);
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

/** Sets the window's title as long as a page is shown. */
export function useTitle(title) {
  useEffect(() => {
    document.title = title ? `${title} · Headgate` : "Headgate";
  }, [title]);
}
