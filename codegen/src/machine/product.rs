//! Measurements as a profile keeps them: curves, and times of our own products.

use super::wave;
use crate::order::TileOrder;
use serde::{Deserialize, Serialize};

/// What was measured, over what was varied.
pub type Curve = Vec<[f64; 2]>;

/// The time of one of our own products, without communication.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProductTime {
    /// Rows, columns and depth.
    pub size: [u32; 3],
    /// Rows and columns of a tile.
    pub tile: [u32; 2],
    /// Whether each warpgroup multiplies a tile of its own.
    pub ping_pong: bool,
    /// SMs that multiply, at most.
    pub sms: u32,
    /// Seconds of products before it, without a pause.
    pub load: f64,
    /// Seconds of a launch.
    pub seconds: f64,
}

/// Groups of rows of tiles of all products that are probes.
const GROUPED: u32 = 8;
impl ProductTime {
    /// Bytes a second through L2, if nothing but reads takes time: what a column of K takes beside what memory delivers of it.
    pub(super) fn l2(&self, memory: f64) -> Option<f64> {
        const ELEMENT: f64 = 2.0;
        let [m, n, k] = self.size;
        let [rows, columns] = self.tile;
        let grid = (m.div_ceil(rows), n.div_ceil(columns));
        let rounds = (grid.0 * grid.1).div_ceil(self.sms);
        let (down, across) = wave(self.sms, grid, TileOrder::Grouped(GROUPED));
        let column = self.seconds / f64::from(rounds) / f64::from(k);
        let distinct = f64::from(down * rows + across * columns);
        let left = column - distinct * ELEMENT / memory;
        let read = f64::from(self.sms) * f64::from(rows + columns) * ELEMENT;
        (left > 0.0).then(|| read / left)
    }

    /// FLOP a second while the K loop runs: what a longer one of the same kind takes more.
    pub(super) fn rate(&self, longer: &ProductTime) -> Option<f64> {
        let kind = |of: &ProductTime| (of.size[0], of.size[1], of.tile, of.ping_pong, of.sms);
        let [m, n, k] = self.size.map(f64::from);
        let more = f64::from(longer.size[2]) - k;
        let seconds = longer.seconds - self.seconds;
        (kind(self) == kind(longer) && more > 0.0 && seconds > 0.0)
            .then(|| 2.0 * m * n * more / seconds)
    }
}
