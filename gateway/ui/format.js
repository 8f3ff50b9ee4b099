// Figures to words. What is not known (null, undefined, NaN) is said to be unknown, never shown as 0.

export const UNKNOWN = "unknown";

const known = (value) => typeof value === "number" && Number.isFinite(value);

export const isKnown = known;

/** 1234 → "1,234", with few decimals for small numbers. */
export function number(value, decimals = 0) {
  return known(value) ? value.toLocaleString("en", { maximumFractionDigits: decimals, minimumFractionDigits: 0 }) : UNKNOWN;
}

/** Tokens a second, with a decimal where it says something. */
export function rate(value) {
  if (!known(value)) return UNKNOWN;
  return value > 0 && value < 10 ? value.toFixed(1) : number(Math.round(value));
}

/** 0.834 → "83 %". */
export function percent(share) {
  if (!known(share)) return UNKNOWN;
  const hundredths = share * 100;
  return `${hundredths > 0 && hundredths < 10 ? hundredths.toFixed(1) : Math.round(hundredths)} %`;
}

/** MiB to the unit that reads best. */
export function mebibytes(value) {
  if (!known(value)) return UNKNOWN;
  return value < 1024 ? `${Math.round(value)} MiB` : `${(value / 1024).toFixed(value < 10240 ? 1 : 0)} GiB`;
}

/** Seconds to "0.42 s", "12 s", "3 min 5 s", "2 h 10 min". */
export function duration(seconds) {
  if (!known(seconds)) return UNKNOWN;
  if (seconds < 10) return `${seconds.toFixed(seconds < 1 ? 2 : 1)} s`;
  if (seconds < 60) return `${Math.round(seconds)} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes} min ${Math.floor(seconds % 60)} s`;
  const hours = Math.floor(minutes / 60);
  return hours < 48 ? `${hours} h ${minutes % 60} min` : `${Math.floor(hours / 24)} days`;
}

/** Unix seconds to a time of day. */
export function clock(unixSeconds) {
  return known(unixSeconds) ? new Date(unixSeconds * 1000).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" }) : UNKNOWN;
}

/** A sentence begins with a capital. */
export function sentence(text) {
  return text ? text.charAt(0).toUpperCase() + text.slice(1) : "";
}
