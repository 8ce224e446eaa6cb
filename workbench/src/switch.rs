//! Predicted gain of NVLink multicast, statement by statement, by rates that others published.

use super::args::Verb;
use super::ready::Ready;
use super::render::Console;
use counterflow_codegen::lower::lower;
use counterflow_codegen::program::Program;
use counterflow_codegen::variant::Variant;
use counterflow_runtime::Error;
use counterflow_timeline::model::{Brings, IN_SWITCH, Multicast, UNICAST, Way, multicast};
use serde_json::{Value as Json, json};

/// Basis of a timeline of every rank's memory.
pub(super) const RATES: &str =
    "what goes to every rank at once is timed by rates that others published, not measured by us";

/// True if GPUs would need a multicast object for it, which no verb makes. What has no kernel is refused elsewhere.
pub(super) fn needs_object(program: &Program, variant: &Variant) -> bool {
    lower(program, variant).is_ok_and(|kernel| kernel.needs_multicast())
}

/// Refuses it on GPUs.
pub(super) fn refused(verb: Verb, program: &Program) -> Error {
    Error::Usage {
        what: format!(
            "`{}` of {} on GPUs: it needs a multicast object, and no verb makes one",
            verb.name(),
            program.name
        ),
        legal: "check, emit, compile, predict, or run --device cpu; docs/multicast.md says how a program of your own runs it"
            .into(),
    }
}

const fn says(way: Way) -> &'static str {
    match way {
        Way::Everywhere => "one store to every rank",
        Way::Sum => "one sum of every rank's copy",
        Way::Already => "written so",
        Way::None => "nothing to gain",
    }
}

fn microseconds(seconds: f64) -> String {
    format!("{:.1}", seconds * 1e6)
}

fn line(what: &str, way: &str, brings: &Brings) -> String {
    let [best, worst] = brings.after.map(microseconds);
    let after = if best == worst {
        best
    } else {
        format!("{best} to {worst}")
    };
    let mega = |bytes: [u64; 2]| {
        let [sent, received] = bytes.map(|bytes| format!("{:.1}", bytes as f64 / 1e6));
        format!("sends {sent} MB, receives {received}")
    };
    format!(
        "  {what}\n    {way}: {} -> {}; links {} -> {after} µs",
        mega(brings.unicast),
        mega(brings.switch),
        microseconds(brings.before)
    )
}

fn fields(brings: &Brings) -> Json {
    json!({
        "sent_bytes": brings.unicast[0],
        "received_bytes": brings.unicast[1],
        "sent_bytes_by_switch": brings.switch[0],
        "received_bytes_by_switch": brings.switch[1],
        "link_seconds": brings.before,
        "link_seconds_by_switch": brings.after,
    })
}

/// Says it, and gives it as JSON. `texts` are the kernel's statements.
pub(super) fn brings(ready: &Ready, texts: &[String], console: &mut Console<'_>) -> Json {
    let Multicast {
        statements,
        all,
        all_reduce,
    } = multicast(&ready.kernel, &ready.plan);
    let text = |op: usize| texts.get(op).map_or("", |text| &text[..]);
    console.say(format!(
        "**multicast** by published rates, not measured by us: {:.0} GB/s by stores, {:.0} where the switch both sums and stores everywhere; the busiest rank",
        UNICAST / 1e9,
        IN_SWITCH / 1e9
    ));
    for (op, way, brings) in &statements {
        console.say(line(
            &format!("`{}`", text(usize::from(op.0))),
            says(*way),
            brings,
        ));
    }
    if statements.is_empty() {
        console.say("  nothing crosses a link");
    } else {
        console.say(line("in all", "links, not the launch", &all));
    }
    if let Some([bytes, unicast, switch]) = all_reduce {
        console.say(format!(
            "  an all-reduce of {:.1} MB alone on six H100s, elsewhere: {} µs by unicast, {} by multicast",
            bytes / 1e6,
            microseconds(unicast),
            microseconds(switch)
        ));
    }
    let each = statements.iter().map(|(op, way, brings)| {
        json!({
            "statement": text(usize::from(op.0)),
            "way": says(*way),
            "brings": fields(brings),
        })
    });
    json!({
        "measured_by_us": false,
        "statements": each.collect::<Vec<_>>(),
        "all": fields(&all),
        "all_reduce_elsewhere": all_reduce.map(|[bytes, unicast, switch]| json!({
            "bytes": bytes,
            "seconds": unicast,
            "seconds_by_multicast": switch,
        })),
    })
}
