//! Answers to what all ranks of a process ask for together.

use super::adopt::adopted;
use super::heap::Room;
use super::refusal::Refusal;
use super::request::{Granted, Request, Wanted};
use super::split::{ALL, Kind};
use super::{Answer, Group, differing, lock, multicast, orders};
use crate::driver::multicast_calls;
use crate::held::Owner;
use std::sync::Arc;

impl Group {
    /// Does what all ranks asked for, in the thread of the last.
    pub(super) fn act(&self, asked: &[Request]) -> Answer {
        let split: Option<Vec<_>> = asked.iter().map(Request::split).collect();
        if let Some(split) = split {
            return self.parts_of(&split, Kind::Split);
        }
        if asked.iter().all(|asked| *asked == Request::Try) {
            return self.parts_of(&vec![ALL; asked.len()], Kind::Trial);
        }
        let told: Option<Arc<[String]>> = asked
            .iter()
            .map(|asked| asked.told().map(str::to_owned))
            .collect();
        if let Some(told) = told {
            return Ok(Granted::Told(told));
        }
        let refusal = asked.iter().zip(0..).find_map(|(asked, rank)| match asked {
            Request::Refuse(why) => Some(why.clone().of(rank)),
            Request::Meet
            | Request::Reserve(_)
            | Request::Multicast(_)
            | Request::Allocate(_)
            | Request::Adopt(..)
            | Request::Orders(_)
            | Request::Share(_)
            | Request::Load(_)
            | Request::Split { .. }
            | Request::Try => None,
        });
        refusal.map_or(Ok(()), Err)?;
        let request = &asked[0];
        if asked.iter().any(|other| other != request) {
            let orders: Option<Vec<_>> = asked.iter().map(Request::orders).collect();
            if let Some(refusal) = orders.and_then(|orders| orders::differing(&orders)) {
                return Err(refusal);
            }
            return Err(differing(asked.iter().map(ToString::to_string)));
        }
        self.grant(asked)
    }

    /// Does what all ranks ask for: the same, with what each rank of this process brings for it.
    pub(super) fn grant(&self, asked: &[Request]) -> Answer {
        let request = &asked[0];
        match request {
            Request::Meet | Request::Orders(_) => Ok(Granted::Done),
            Request::Split { .. } | Request::Try | Request::Refuse(_) | Request::Share(_) => {
                Err(differing([request.to_string()].into_iter()))
            }
            Request::Load(needs) => {
                let placed = lock(&self.pool).place(&self.heap, needs, self.timeout);
                Ok(Granted::Kernel(Arc::new(placed.map_err(Refusal::from)?)))
            }
            Request::Reserve(bytes) => {
                self.heap.reserve(*bytes).map_err(Refusal::from)?;
                Ok(Granted::Done)
            }
            Request::Multicast(wanted) => {
                let calls = multicast_calls(self.heap.gpus());
                multicast::open(&self.heap, *wanted, calls)?;
                Ok(Granted::Done)
            }
            Request::Adopt(wanted, _) => {
                let loans = asked.iter().filter_map(Request::loan);
                let adopted = adopted(
                    &self.heap,
                    self.peers.as_deref(),
                    (&wanted.name, wanted.bytes),
                    loans,
                )?;
                Ok(Granted::Memory(Arc::new(adopted)))
            }
            Request::Allocate(wanted) => {
                let Wanted { name, bytes, .. } = wanted;
                let allocation =
                    self.heap
                        .allocate((name, Owner::Program), *bytes, Room::Heap, self.timeout);
                let allocation = allocation.map_err(Refusal::from)?;
                Ok(Granted::Memory(Arc::new(allocation)))
            }
        }
    }
}
