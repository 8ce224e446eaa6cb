//! Results as JSON.

use super::meter::Reading;
use super::stats::Spread;
use super::table::{Result, summaries};
use serde_json::{Value as Json, json};

fn spread(spread: Spread) -> Json {
    json!({ "median": spread.median, "p10": spread.low, "p90": spread.high })
}

fn reading(reading: &Reading) -> Json {
    json!({ "sm_mhz": spread(reading.clock), "watts": spread(reading.power) })
}

/// All results as JSON, with times in seconds.
pub(super) fn object(results: &[Result]) -> Json {
    let each = results.iter().map(|result| {
        let [m, n, k] = result.case.size;
        let rows = result.rows.iter().map(|row| {
            json!({
                "contender": row.contender,
                "choices": row.ours,
                "seconds": spread(row.seconds),
                "samples": row.samples,
                "launches_a_sample": row.launches,
                "flop_per_second": result.flop() / row.seconds.median,
                "wrong_elements": row.difference.wrong,
                "of_rounding": row.difference.worst,
                "over_cublas": row.over_cublas,
                "over_the_same": row.over_plain,
                "of_bound": result.link.map(|_| row.seconds.median / result.bound()),
                "sustained": row.sustained.as_ref().map(|own| json!({
                    "seconds": own.seconds,
                    "flop_per_second": result.flop() / own.seconds,
                    "over_cublas": result.rows[0].sustained.map(|base| base.seconds / own.seconds),
                    "by_second": own.windows.map(spread),
                    "state": own.reading.as_ref().map(reading),
                })),
            })
        });
        json!({
            "layer": result.case.layer,
            "suites": result.case.suites,
            "m": m, "n": n, "k": k,
            "least_link_seconds": result.link,
            "bound_seconds": result.link.map(|_| result.bound()),
            "cublas_algorithms_tried": result.algorithms,
            "cublas_has_no": result.absent,
            "state": result.reading.as_ref().map(reading),
            "contenders": rows.collect::<Vec<_>>(),
        })
    });
    let means = summaries(results).into_iter().map(|summary| {
        json!({
            "contender": summary.contender,
            "products": summary.products,
            "geometric_mean": summary.mean,
            "worst": summary.worst.0,
            "worst_at": summary.worst.1,
        })
    });
    json!({ "products": each.collect::<Vec<_>>(), "means": means.collect::<Vec<_>>() })
}
