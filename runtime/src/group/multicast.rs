//! How ranks come to a multicast view of the heap, all or none.
//!
//! Binding memory and mapping wait inside of the driver, without a limit, until the GPUs of all ranks are added. So a rank
//! does neither before it has heard that every rank has added its own: after each step all say whether they could, and what
//! one was refused ends it for all, before anybody waits for that rank. Then each undoes its part.

use super::heap::Heap;
use super::peers::Peers;
use super::refusal::{Refusal, handed, said};
use crate::driver::Gpu;
use crate::error::Error;
use crate::multicast::{Calls, Granularity, Multicast, Part, Team, View};
use crate::rendezvous::Deadline;
use serde::{Deserialize, Serialize};
use std::ops::Range;
use std::sync::Arc;
use tracing::{info, warn};

const WHAT: &str = "opens multicast";

/// Facts that a process tells about its ranks' GPUs.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Fit {
    /// As in [`Granularity`].
    least: u64,
    recommended: u64,
    /// Names of the GPUs: none where they are emulated.
    gpus: Vec<String>,
}

/// Opens it, as all ranks ask. With [`Multicast::Auto`] a refusal leaves the heap as it is, and is told once.
pub(super) fn open(
    heap: &Heap,
    wanted: Multicast,
    calls: Result<Arc<dyn Calls>, Error>,
) -> Result<(), Refusal> {
    let has = heap.state().multicast.view.is_some();
    match (wanted, has) {
        (Multicast::Off, false) | (Multicast::Auto | Multicast::On, true) => return Ok(()),
        (Multicast::Off, true) => {
            return Err(Refusal::from(Error::Usage {
                what: "multicast off, where it is on".into(),
                legal:
                    "make another communicator: kernels may use it for as long as this one lives"
                        .into(),
            }));
        }
        (Multicast::Auto | Multicast::On, false) => {}
    }
    let opened = match &heap.peers {
        None => among_threads(heap, calls).map_err(Refusal::from),
        Some(peers) => among_processes(heap, peers, calls).map_err(Refusal::from)?,
    };
    let mut state = heap.state();
    match (opened, wanted) {
        (Ok(view), _) => {
            info!(bytes = view.reaches(), "multicast opened");
            (state.multicast.view, state.multicast.why) = (Some(view), None);
            Ok(())
        }
        (Err(why), Multicast::On) => Err(why),
        (Err(why), Multicast::Auto | Multicast::Off) => {
            if state.multicast.why.as_ref() != Some(&why) {
                warn!(why = why.what(), help = why.helps(), "no multicast");
            }
            state.multicast.why = Some(why);
            Ok(())
        }
    }
}

impl Heap {
    /// Binds what was added to every slot. What the driver refuses leaves that without multicast, on every rank, and is told once.
    pub(super) fn multicast_grown(&self) -> Result<(), Error> {
        let (from, to) = {
            let state = self.state();
            let view = &state.multicast.view;
            let open = view.as_ref().filter(|_| state.multicast.why.is_none());
            match open.map(View::reaches) {
                Some(from) if from < state.slots.backed() => (from, state.slots.backed()),
                Some(_) | None => return Ok(()),
            }
        };
        let parts = parts(self, from);
        let bound = match &mut self.state().multicast.view {
            Some(view) => view.bind(&parts),
            None => return Ok(()),
        };
        let bound = match &self.peers {
            None => bound.map_err(Refusal::from),
            Some(peers) => {
                let deadline = Deadline::after(peers.limit());
                handed(
                    peers,
                    "adds memory to multicast",
                    deadline,
                    bound.map(|()| None),
                )?
                .map(drop)
            }
        };
        let mut state = self.state();
        let Some(view) = &mut state.multicast.view else {
            return Ok(());
        };
        match bound {
            Ok(()) => view.reaches_to(to),
            Err(why) => {
                view.take_back();
                warn!(
                    why = why.what(),
                    bytes = from,
                    "multicast reaches no memory behind that"
                );
                state.multicast.why = Some(why);
            }
        }
        Ok(())
    }
}

/// The memory of this process's ranks behind that offset.
fn parts(heap: &Heap, from: u64) -> Vec<Part> {
    let first = heap.peers.as_ref().map_or(0, |peers| peers.rank());
    let state = heap.state();
    let each = (first..).zip(&heap.gpus).flat_map(|(rank, gpu)| {
        let pieces = state.slots.pieces(rank, from).into_iter();
        pieces
            .map(|Range { start, end }| Part {
                gpu: gpu.ordinal(),
                offset: start,
                address: state.slots.address(rank, start).get(),
                bytes: end - start,
            })
            .collect::<Vec<_>>()
    });
    each.collect()
}

fn ordinals(gpus: &[Gpu]) -> Vec<u32> {
    gpus.iter().map(Gpu::ordinal).collect()
}

/// Rejects a rank alone, and two ranks on one GPU: an object has each GPU once, and the driver would wait for ever for one that
/// never comes.
fn must_be_apart(gpus: &[String]) -> Result<(), Error> {
    let twice = (1..gpus.len()).find_map(|later| {
        let first = gpus[..later].iter().position(|gpu| *gpu == gpus[later])?;
        Some((first, later))
    });
    let what = match twice {
        Some((first, later)) => {
            format!(
                "multicast to ranks {first} and {later}, which share {}",
                gpus[later]
            )
        }
        None if gpus.len() < 2 => "multicast to one rank".into(),
        None => return Ok(()),
    };
    Err(Error::Usage {
        what,
        legal: "go on without it: multicast is for two or more ranks with a GPU each".into(),
    })
}

/// Rejects memory that cannot be bound, which is alike on all ranks.
fn must_be_aligned(heap: &Heap, granularity: Granularity) -> Result<(), Error> {
    let Granularity { least, recommended } = granularity;
    if !least.is_power_of_two() || !recommended.is_power_of_two() {
        return Err(Error::Driver {
            what: "ask for the granularity of multicast".into(),
            code: format!("it says {least} and {recommended} bytes"),
            help: "go on without it, and report it".into(),
        });
    }
    let odd = parts(heap, 0)
        .into_iter()
        .find(|part| part.offset % least != 0 || part.bytes % least != 0);
    match odd {
        None => Ok(()),
        Some(Part { offset, bytes, .. }) => Err(Error::Usage {
            what: format!(
                "multicast to {bytes} bytes at {offset} of each slot, where it takes multiples of {least}"
            ),
            legal: format!(
                "`reserve` a multiple of {least} bytes first, and ask then; otherwise go on without it"
            ),
        }),
    }
}

/// GPUs and bytes that the object is made for.
fn team(heap: &Heap, granularity: Granularity) -> Result<Team, Error> {
    let state = heap.state();
    let stride = state.slots.stride();
    let bytes = stride.checked_next_multiple_of(granularity.recommended);
    let bytes = bytes.ok_or_else(|| Error::TooLarge {
        what: format!("multicast to slots of {stride} bytes"),
        help: "make the communicator with smaller slots".into(),
    })?;
    Ok(Team {
        gpus: heap.world,
        bytes,
        handles: state.slots.handles(),
    })
}

/// Granularity of an object as large as a slot.
fn granularity(heap: &Heap, calls: &Arc<dyn Calls>) -> Result<Granularity, Error> {
    let one = Granularity {
        least: 1,
        recommended: 1,
    };
    calls.granularity(&team(heap, one)?)
}

/// Binds and maps all, once all GPUs of all ranks are added.
fn filled(heap: &Heap, view: &mut View) -> Result<(), Error> {
    view.bind(&parts(heap, 0))?;
    view.map()
}

fn among_threads(heap: &Heap, calls: Result<Arc<dyn Calls>, Error>) -> Result<View, Error> {
    let calls = calls?;
    let gpus = ordinals(&heap.gpus);
    let named: Vec<String> = gpus.iter().map(|gpu| format!("GPU {gpu}")).collect();
    must_be_apart(&named)?;
    let granularity = granularity(heap, &calls)?;
    must_be_aligned(heap, granularity)?;
    let mut view = View::create(&calls, (team(heap, granularity)?, granularity), gpus)?;
    view.add()?;
    filled(heap, &mut view)?;
    view.reaches_to(heap.state().slots.backed());
    Ok(view)
}

/// The view, or what a rank was refused: the same on all.
///
/// # Errors
/// Why the communicator has ended.
fn among_processes(
    heap: &Heap,
    peers: &Peers,
    calls: Result<Arc<dyn Calls>, Error>,
) -> Result<Result<View, Refusal>, Error> {
    let deadline = Deadline::after(peers.limit());
    // Whether each may, and how its driver wants it.
    let mine = calls.and_then(|calls| Ok((fit(heap, &calls)?, calls)));
    let (fit, calls) = match mine {
        Ok((fit, calls)) => (Ok((fit, None)), Some(calls)),
        Err(refused) => (Err(refused), None),
    };
    let all = match said::<Fit>(peers, WHAT, deadline, fit)? {
        Ok(all) => all,
        Err(refusal) => return Ok(Err(refusal)),
    };
    let Some(calls) = calls else {
        return Err(peers.misled(peers.rank()));
    };
    // All find the same.
    let each = || all.iter().map(|(fit, _)| fit);
    let granularity = Granularity {
        least: each().map(|fit| fit.least).max().unwrap_or(1),
        recommended: each().map(|fit| fit.recommended).max().unwrap_or(1),
    };
    let gpus: Vec<String> = each().flat_map(|fit| fit.gpus.clone()).collect();
    let fits = must_be_apart(&gpus).and_then(|()| must_be_aligned(heap, granularity));
    let place = match fits.and_then(|()| team(heap, granularity)) {
        Ok(team) => (team, granularity),
        Err(error) => return Ok(Err(error.into())),
    };

    // The first makes it and hands it to the others.
    let mut view = None;
    let offered = match peers.rank() {
        0 => View::create(&calls, place, ordinals(&heap.gpus))
            .and_then(|made| view.insert(made).export())
            .map(Some),
        _ => Ok(None),
    };
    let offered = match handed(peers, WHAT, deadline, offered)? {
        Ok(offered) => offered.into_iter().next().flatten(),
        Err(refusal) => return Ok(Err(refusal)),
    };

    // Each adds its GPU, and nobody goes on before all have. Who is refused keeps the object until all have said so: others
    // may be about to import it.
    let imported = match (view, offered) {
        (Some(view), _) => Ok(view),
        (None, Some(offered)) => View::import(&calls, &offered, place, ordinals(&heap.gpus)),
        (None, None) => return Err(peers.misled(0)),
    };
    let added = imported.as_ref().map_or(Ok(()), View::add);
    let (mut view, added) = match imported {
        Ok(view) => (Some(view), added),
        Err(refused) => (None, Err(refused)),
    };
    if let Err(refusal) = handed(peers, WHAT, deadline, added.map(|()| None))? {
        return Ok(Err(refusal));
    }

    // Nobody uses it before all have bound and mapped it.
    let filled = match &mut view {
        Some(view) => filled(heap, view),
        None => return Err(peers.misled(peers.rank())),
    };
    if let Err(refusal) = handed(peers, WHAT, deadline, filled.map(|()| None))? {
        return Ok(Err(refusal));
    }
    let Some(mut view) = view else {
        return Err(peers.misled(peers.rank()));
    };
    view.reaches_to(heap.state().slots.backed());
    Ok(Ok(view))
}

fn fit(heap: &Heap, calls: &Arc<dyn Calls>) -> Result<Fit, Error> {
    let Granularity { least, recommended } = granularity(heap, calls)?;
    let first = heap.peers.as_ref().map_or(0, |peers| peers.rank());
    let handles = heap.state().slots.handles();
    let gpus = (first..).zip(&heap.gpus).map(|(rank, gpu)| {
        let uuid = gpu.about(handles)?.uuid;
        Ok::<_, Error>(uuid.unwrap_or_else(|| format!("the emulated GPU of rank {rank}")))
    });
    Ok(Fit {
        least,
        recommended,
        gpus: gpus.collect::<Result<_, _>>()?,
    })
}

#[cfg(test)]
#[path = "multicast/tests.rs"]
mod tests;
