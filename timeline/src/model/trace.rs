//! A timeline as a Chrome trace, which Perfetto and `chrome://tracing` open.
//!
//! A process for each rank, a thread for each lane (and one for its stores, which run beside it), arrows from signals
//! to the waits they ended, and counter tracks for both directions of each link. Large timelines are reduced so that
//! the text stays below about 20 MB: consecutive tiles are drawn as one, and if that is not enough, only the first
//! ranks are drawn.

use super::event::EventKind;
use super::timeline::Timeline;
use counterflow_codegen::kernel::OpId;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::{self, Write};

/// The most slices, arrows and counter values: 20 MB at the length of a line each.
const MOST_SLICES: usize = 90_000;
const MOST_FLOWS: usize = 8_000;
const MOST_VALUES: usize = 20_000;
const VALUES_A_TRACK: usize = 500;

/// A thread of a rank: a lane, or the stores beside it.
type Thread = (u16, u32);

/// One or more consecutive events of a lane.
struct Slice {
    thread: Thread,
    kind: EventKind,
    op: OpId,
    peer: u16,
    start: f64,
    end: f64,
    bytes: u64,
    count: u32,
}

impl Timeline {
    /// The trace as JSON text.
    ///
    /// ```
    /// use counterflow_codegen::machine::Machine;
    /// use counterflow_timeline::model;
    /// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/../codegen/tests/fixtures/example.rs")); }
    ///
    /// let (series, plan) = example::proven();
    /// let timeline = model::predict(series.kernel(), &plan, &Machine::h200())?;
    /// let json = timeline.trace(); // for Perfetto, or Chrome's tracing page
    /// let mut text = String::new();
    /// timeline.write_trace(&mut text)?; // the same, bit by bit
    /// assert_eq!(json, text);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn trace(&self) -> String {
        let mut text = String::new();
        // Writing to a string does not fail.
        let _ = self.write_trace(&mut text);
        text
    }

    /// Writes the trace as JSON.
    ///
    /// # Errors
    /// What the writer reports.
    pub fn write_trace(&self, out: &mut impl Write) -> fmt::Result {
        let (slices, ranks) = thinned(self);
        write!(
            out,
            "{{\"displayTimeUnit\":\"ns\",\"otherData\":{{\"title\":"
        )?;
        string(out, &self.title)?;
        write!(
            out,
            ",\"ranks\":\"{ranks} of {}\"}},\"traceEvents\":[",
            self.world
        )?;
        let mut list = List { out, first: true };
        self.metadata(&mut list, &slices, ranks)?;
        for slice in &slices {
            self.slice(&mut list, slice)?;
        }
        self.arrows(&mut list, ranks)?;
        self.links(&mut list, ranks)?;
        list.out.write_str("\n]}\n")
    }

    fn metadata(
        &self,
        list: &mut List<'_, impl Write>,
        slices: &[Slice],
        ranks: u32,
    ) -> fmt::Result {
        for rank in 0..ranks {
            list.next()?;
            let name = "\"ph\":\"M\",\"name\":\"process_name\"";
            write!(
                list.out,
                "{{{name},\"pid\":{rank},\"args\":{{\"name\":\"rank {rank}\"}}}}"
            )?;
        }
        let threads: BTreeSet<Thread> = slices.iter().map(|slice| slice.thread).collect();
        for (rank, thread) in threads {
            let lane = &self.lanes[(thread / 2) as usize].name;
            let name = if thread % 2 == 0 {
                lane.clone()
            } else {
                format!("{lane}, stores")
            };
            list.next()?;
            write!(
                list.out,
                "{{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":{rank},\"tid\":{thread},\"args\":{{\"name\":"
            )?;
            string(list.out, &name)?;
            list.out.write_str("}}")?;
        }
        Ok(())
    }

    fn slice(&self, list: &mut List<'_, impl Write>, slice: &Slice) -> fmt::Result {
        let statement = &self.statements[usize::from(slice.op.0)];
        let name = if slice.count > 1 {
            format!("{} × {statement}", slice.count)
        } else {
            statement.clone()
        };
        list.next()?;
        list.out.write_str("{\"ph\":\"X\",\"name\":")?;
        string(list.out, &name)?;
        let (pid, tid) = slice.thread;
        let (start, duration) = (us(slice.start), us(slice.end - slice.start));
        let kind = slice.kind.name();
        write!(
            list.out,
            ",\"cat\":\"{kind}\",\"pid\":{pid},\"tid\":{tid},\"ts\":{start},\"dur\":{duration}"
        )?;
        if slice.bytes > 0 {
            let (bytes, peer) = (slice.bytes, slice.peer);
            write!(list.out, ",\"args\":{{\"bytes\":{bytes},\"peer\":{peer}}}")?;
        }
        list.out.write_char('}')
    }

    /// An arrow is drawn only if it begins and ends within a slice: it begins a nanosecond before the signal, where the
    /// signalled work ends, and ends a nanosecond before the wait ends.
    fn arrows(&self, list: &mut List<'_, impl Write>, ranks: u32) -> fmt::Result {
        let shown = |rank: u16| u32::from(rank) < ranks;
        let flows = || {
            let flows = self.flows.iter();
            flows.filter(|flow| shown(flow.from.0) && shown(flow.to.0))
        };
        let every = flows().count().div_ceil(MOST_FLOWS).max(1);
        for (id, flow) in flows().step_by(every).enumerate() {
            let name = self.counters[flow.counter.index()].as_str();
            let thread = u32::from(flow.from.1) * 2 + u32::from(flow.overlapped);
            for (phase, rank, thread, time) in [
                ("s\"", flow.from.0, thread, flow.sent),
                (
                    "f\",\"bp\":\"e\"",
                    flow.to.0,
                    u32::from(flow.to.1) * 2,
                    flow.met,
                ),
            ] {
                let time = us((time - 1e-9).max(0.0));
                list.next()?;
                write!(
                    list.out,
                    "{{\"ph\":\"{phase},\"id\":{id},\"cat\":\"signal\",\"name\":"
                )?;
                string(list.out, name)?;
                write!(list.out, ",\"pid\":{rank},\"tid\":{thread},\"ts\":{time}}}")?;
            }
        }
        Ok(())
    }

    fn links(&self, list: &mut List<'_, impl Write>, ranks: u32) -> fmt::Result {
        if self.volume.total() == 0 {
            return Ok(());
        }
        let count = (MOST_VALUES / (2 * ranks as usize).max(1)).clamp(20, VALUES_A_TRACK);
        let step = self.total / count as f64;
        let mut rates = vec![[0.0f64; 2]; count * ranks as usize];
        for event in self.events.iter().filter(|event| event.kind.crosses()) {
            let length = (event.end - event.start).max(1e-12);
            for rank in 0..ranks {
                let (out, into) = Timeline::link_use(event, rank as u16);
                if out + into == 0 {
                    continue;
                }
                let (first, last) = ((event.start / step) as usize, (event.end / step) as usize);
                for at in first..=last.min(count - 1) {
                    let (from, to) = (at as f64 * step, (at + 1) as f64 * step);
                    let share = (event.end.min(to) - event.start.max(from)).max(0.0) / length;
                    let rate = &mut rates[rank as usize * count + at];
                    rate[0] += share * out as f64 / step * 1e-9;
                    rate[1] += share * into as f64 / step * 1e-9;
                }
            }
        }
        for rank in 0..ranks as usize {
            for (direction, name) in ["link out", "link in"].into_iter().enumerate() {
                let mut last = -1.0;
                for at in 0..=count {
                    let rate = rates.get(rank * count + at).filter(|_| at < count);
                    let rate = rate.map_or(0.0, |rate| rate[direction].round());
                    if rate == last {
                        continue;
                    }
                    last = rate;
                    let time = us(at as f64 * step);
                    list.next()?;
                    write!(
                        list.out,
                        "{{\"ph\":\"C\",\"name\":\"{name}\",\"pid\":{rank},\"ts\":{time},\"args\":{{\"GB/s\":{rate}}}}}"
                    )?;
                }
            }
        }
        Ok(())
    }
}

/// The slices to draw, and of how many ranks.
fn thinned(timeline: &Timeline) -> (Vec<Slice>, u32) {
    let mut by_rank: BTreeMap<u16, usize> = BTreeMap::new();
    let mut together = 1;
    loop {
        let slices = joined(timeline, together, timeline.world);
        if slices.len() <= MOST_SLICES {
            return (slices, timeline.world);
        }
        if together >= 64 {
            for slice in &slices {
                *by_rank.entry(slice.thread.0).or_default() += 1;
            }
            let mut count = 0;
            let fits = by_rank.values().take_while(|slices| {
                count += **slices;
                count <= MOST_SLICES
            });
            let ranks = fits.count().max(1) as u32;
            return (joined(timeline, together, ranks), ranks);
        }
        together *= 2;
    }
}

/// Events of the first ranks. Up to `together` consecutive events of one op on a lane are drawn as one.
fn joined(timeline: &Timeline, together: u32, ranks: u32) -> Vec<Slice> {
    let mut slices: Vec<Slice> = Vec::new();
    let mut last: HashMap<Thread, usize> = HashMap::new();
    let events = timeline.events.iter();
    for event in events.filter(|event| u32::from(event.rank) < ranks) {
        let thread = u32::from(event.lane) * 2 + u32::from(event.overlapped);
        let thread = (event.rank, thread);
        if let Some(slice) = last.get(&thread).map(|at| &mut slices[*at])
            && (slice.op, slice.kind) == (event.op, event.kind)
            && slice.count < together
        {
            slice.end = slice.end.max(event.end);
            slice.bytes += event.bytes;
            slice.count += 1;
            continue;
        }
        last.insert(thread, slices.len());
        slices.push(Slice {
            thread,
            kind: event.kind,
            op: event.op,
            peer: event.peer,
            start: event.start,
            end: event.end,
            bytes: event.bytes,
            count: 1,
        });
    }
    slices
}

/// A JSON list as it is being written.
struct List<'a, W> {
    out: &'a mut W,
    first: bool,
}

impl<W: Write> List<'_, W> {
    fn next(&mut self) -> fmt::Result {
        let comma = if std::mem::take(&mut self.first) {
            "\n"
        } else {
            ",\n"
        };
        self.out.write_str(comma)
    }
}

/// Microseconds to the nanosecond.
fn us(time: f64) -> String {
    format!("{:.3}", time * 1e6)
}

/// A JSON string.
fn string(out: &mut impl Write, text: &str) -> fmt::Result {
    out.write_char('"')?;
    for c in text.chars() {
        match c {
            '"' => out.write_str("\\\"")?,
            '\\' => out.write_str("\\\\")?,
            c if u32::from(c) < 0x20 => write!(out, "\\u{:04x}", u32::from(c))?,
            c => out.write_char(c)?,
        }
    }
    out.write_char('"')
}
