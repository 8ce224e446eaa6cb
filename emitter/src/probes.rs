//! Probes: lines of a traced kernel's text that write down when a role came to them. Other kernels' texts have none.

use super::Text;
use super::site::{Site, SiteKind};
use counterflow_codegen::program::CounterId;
use counterflow_codegen::warp::{Ctas, LoopId, Node};

impl Text<'_> {
    /// A probe, if the text is a traced kernel's and a role is being printed.
    fn probe(&mut self, kind: SiteKind, counter: Option<CounterId>, call: &str, arguments: &str) {
        if !self.probes() {
            return;
        }
        let site = self.site(kind, counter);
        self.line(format!("lane_trace.{call}({site}{arguments});"));
    }

    /// True if the text is a traced kernel's, and where `lane_trace` is known.
    fn probes(&self) -> bool {
        self.traced && self.in_role
    }

    fn site(&mut self, kind: SiteKind, counter: Option<CounterId>) -> usize {
        self.sites.push(Site {
            kind,
            role: self.role,
            statement: self.statement.clone(),
            loc: self.origin,
            counter,
        });
        self.sites.len() - 1
    }

    /// Before all that a role does.
    pub(super) fn probe_start(&mut self) {
        self.in_role = true;
        if !self.traced {
            return;
        }
        let records = if self.group {
            "threadIdx.x % 128 == 0"
        } else if self.all_lanes {
            "elect_one()"
        } else {
            "true"
        };
        let site = self.site(SiteKind::Start, None);
        self.line(format!("LaneTrace lane_trace({records}, {site});"));
    }

    /// Behind all that a role does.
    pub(super) fn probe_end(&mut self) {
        self.statement.clear();
        self.probe(SiteKind::End, None, "event", ", 0, 0");
        self.in_role = false;
    }

    /// At the head of an item, and in its body: the body's nodes are printed here.
    pub(super) fn probed_item(&mut self, of: LoopId, body: &[Node]) {
        if !self.probes() {
            return self.list(body);
        }
        let has = |wanted: fn(&Node) -> bool| body.iter().rposition(|node| within(node, wanted));
        let sums = has(|node| matches!(node, Node::Others { .. })).is_some();
        let kind = match self.pipeline.scheduler(of.scheduler).ctas {
            Ctas::Comm { .. } | Ctas::Spare => SiteKind::Move,
            Ctas::All | Ctas::Others(_) | Ctas::LateComm(_) => SiteKind::Tile { sums },
        };
        self.probe(kind, None, "item", ", scheduler.index");
        let multiplied = has(|node| matches!(node, Node::Mma { .. } | Node::MmaWait { .. }));
        match multiplied.filter(|_| self.group) {
            Some(last) => {
                self.list(&body[..=last]);
                self.probe(SiteKind::Multiplied, None, "event", ", 0, 0");
                self.list(&body[last + 1..]);
            }
            None => self.list(body),
        }
        if self.group || has(|node| matches!(node, Node::Store { .. })).is_none() {
            return;
        }
        // What a signal tells of is waited for there, and here nothing more is.
        match has(|node| matches!(node, Node::Defer { .. } | Node::AwaitStores { .. })) {
            Some(_) => self.probe(SiteKind::Sent, None, "event", ", 0, 0"),
            None => self.probe(SiteKind::Stored, None, "stored", ""),
        }
    }

    /// Around a wait for a counter.
    pub(super) fn probe_waits(&mut self, counter: CounterId, cell: &str) {
        let arguments = format!(", {cell}, 0");
        self.probe(SiteKind::Waits, Some(counter), "event", &arguments);
    }

    /// As [`Text::probe_waits`]: once it is met.
    pub(super) fn probe_met(&mut self, counter: CounterId, cell: &str, all: bool) {
        let kind = match all {
            true => SiteKind::Met,
            false => SiteKind::MetEarlier,
        };
        self.probe(kind, Some(counter), "event", &format!(", {cell}, 0"));
    }

    /// Behind a wait for a full stage.
    pub(super) fn probe_full(&mut self, full: bool) {
        if full && self.group {
            self.probe(SiteKind::Loaded, None, "loaded", "");
        }
    }

    /// Before a signal. `if_any`: a pointer that may be null.
    pub(super) fn probe_signals(&mut self, counter: Option<CounterId>, at: &str, if_any: bool) {
        if !self.probes() {
            return;
        }
        let site = self.site(SiteKind::Signals, counter);
        let test = if if_any {
            format!("if ({at}) ")
        } else {
            String::new()
        };
        self.line(format!(
            "{test}lane_trace.signals({site}, plan.cells, {at});"
        ));
    }
}

fn within(node: &Node, wanted: fn(&Node) -> bool) -> bool {
    let mut found = false;
    node.visit(&mut |node| found |= wanted(node));
    found
}
