//! Requests that all ranks make together, and the error that all of them get.

use super::adopt::Loan;
use super::heap::Allocation;
use super::orders::{self, Orders};
use super::pool::{Needs, Placed, Scratch};
use super::refusal::Refusal;
use crate::multicast::Multicast;
use std::fmt;
use std::sync::Arc;

/// First word of a rank that refuses: other requests say something else.
const REFUSED: &str = "refused ";

/// Refusal of the first rank that has one, if those said this.
pub(super) fn refused<'a>(said: impl Iterator<Item = &'a str>) -> Option<Refusal> {
    let mut each = said.zip(0..).filter_map(|(said, rank)| {
        let (why, _) = said.strip_prefix(REFUSED)?.split_once('\0')?;
        let why = serde_json::from_str::<Refusal>(why).ok()?;
        Some(why.of(rank))
    });
    each.next()
}

/// First word of a rank that builds a schedule with orders by closure.
const ORDERS: &str = "orders ";

/// Reason that the orders by closure of ranks that said this are not the same, if that is how they differ.
pub(super) fn differing_orders<'a>(said: impl Iterator<Item = &'a str>) -> Option<Refusal> {
    let orders = said.map(|said| {
        let (orders, _) = said.strip_prefix(ORDERS)?.split_once('\0')?;
        serde_json::from_str(orders).ok()
    });
    let all: Vec<Orders> = orders.collect::<Option<_>>()?;
    orders::differing(&all.iter().collect::<Vec<_>>())
}

/// First word of a rank that tells the others something.
const SHARED: &str = "shares ";

/// Messages of ranks to each other, if all of these are such.
pub(super) fn shared<'a>(said: impl Iterator<Item = &'a str>) -> Option<Arc<[String]>> {
    let each = said.map(|said| {
        let (told, _) = said.strip_prefix(SHARED)?.split_once('\0')?;
        Some(told.to_owned())
    });
    each.collect()
}

/// Request of a rank. All must ask the same, but for what they [share](Request::Share).
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Request {
    Meet,
    Reserve(u64),
    Allocate(Wanted),
    /// Memory of another library for it, which this rank lends.
    Adopt(Wanted, Loan),
    /// Multicast of the heap.
    Multicast(Multicast),
    /// To build a schedule with orders by closure.
    Orders(Orders),
    /// Text that this rank tells the others, without a zero in it.
    Share(Arc<str>),
    /// A number and memory for a kernel that every rank loads.
    Load(Needs),
    /// Reason that this rank cannot do what the others do.
    Refuse(Refusal),
    /// A group of all ranks that ask for the same color, in the order of their keys.
    Split {
        color: u32,
        key: u32,
    },
    /// A group of all ranks, in which they try something that may stall.
    Try,
}

impl Request {
    /// The color and the key of a split.
    pub fn split(&self) -> Option<(u32, u32)> {
        match self {
            Request::Split { color, key } => Some((*color, *key)),
            Request::Try
            | Request::Meet
            | Request::Reserve(_)
            | Request::Multicast(_)
            | Request::Allocate(_)
            | Request::Adopt(..)
            | Request::Orders(_)
            | Request::Share(_)
            | Request::Load(_)
            | Request::Refuse(_) => None,
        }
    }

    /// Text that this rank tells the others.
    pub fn told(&self) -> Option<&str> {
        match self {
            Request::Share(told) => Some(told),
            Request::Meet
            | Request::Reserve(_)
            | Request::Allocate(_)
            | Request::Adopt(..)
            | Request::Orders(_)
            | Request::Multicast(_)
            | Request::Load(_)
            | Request::Refuse(_)
            | Request::Split { .. }
            | Request::Try => None,
        }
    }

    /// The orders by closure of what it builds.
    pub fn orders(&self) -> Option<&Orders> {
        match self {
            Request::Orders(orders) => Some(orders),
            Request::Meet
            | Request::Reserve(_)
            | Request::Multicast(_)
            | Request::Allocate(_)
            | Request::Adopt(..)
            | Request::Share(_)
            | Request::Load(_)
            | Request::Refuse(_)
            | Request::Split { .. }
            | Request::Try => None,
        }
    }

    /// Memory that this rank lends for the request.
    pub(super) fn loan(&self) -> Option<&Loan> {
        match self {
            Request::Adopt(_, loan) => Some(loan),
            Request::Meet
            | Request::Reserve(_)
            | Request::Multicast(_)
            | Request::Allocate(_)
            | Request::Orders(_)
            | Request::Share(_)
            | Request::Load(_)
            | Request::Refuse(_)
            | Request::Split { .. }
            | Request::Try => None,
        }
    }

    /// As a rank that is a process says it to the others: all of it, and what a person reads of it.
    pub(super) fn said(&self) -> String {
        let all = match self {
            Request::Refuse(why) => {
                format!(
                    "{REFUSED}{}",
                    serde_json::to_string(why).unwrap_or_default()
                )
            }
            Request::Orders(orders) => {
                format!(
                    "{ORDERS}{}",
                    serde_json::to_string(orders).unwrap_or_default()
                )
            }
            Request::Share(told) => format!("{SHARED}{told}"),
            other => format!("{other:?}"),
        };
        format!("{all}\0{self}")
    }
}

/// A buffer that is asked for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Wanted {
    pub name: Arc<str>,
    pub shape: Arc<[usize]>,
    /// The element's type.
    pub element: &'static str,
    pub bytes: u64,
}

impl fmt::Display for Wanted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Wanted {
            name,
            shape,
            element,
            bytes,
        } = self;
        write!(f, "{name}, {shape:?} of {element} ({bytes} bytes)")
    }
}

/// Answer that all ranks get.
#[derive(Clone, Debug)]
pub(crate) enum Granted {
    Done,
    Kernel(Arc<Placed>),
    Memory(Arc<Allocation>),
    /// A split, by its number.
    Split(u64),
    /// Text of each rank.
    Told(Arc<[String]>),
}

impl fmt::Display for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Request::Meet => write!(f, "is at a barrier"),
            Request::Split { color, key } => write!(f, "splits by color {color} and key {key}"),
            Request::Try => write!(f, "tries candidates"),
            Request::Refuse(why) => write!(f, "refuses: {}", why.what()),
            Request::Reserve(bytes) => write!(f, "reserves {bytes} bytes"),
            Request::Multicast(wanted) => write!(f, "asks for multicast: {wanted:?}"),
            Request::Allocate(wanted) => write!(f, "allocates {wanted}"),
            Request::Adopt(wanted, _) => write!(f, "adopts {wanted}"),
            Request::Orders(orders) => write!(f, "{orders}"),
            Request::Share(_) => write!(f, "measures candidates"),
            Request::Load(needs) => {
                let Needs {
                    kernel,
                    most,
                    plan,
                    cells,
                    scratch,
                } = needs;
                write!(
                    f,
                    "loads {kernel} for up to {most} (plan {plan:016x}) with {cells} counter cells"
                )?;
                for Scratch { name, bytes, .. } in scratch {
                    write!(f, ", scratch {name} of {bytes} bytes")?;
                }
                Ok(())
            }
        }
    }
}
