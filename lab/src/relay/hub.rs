//! All paths between the sites: which frame takes which, and what is due. No clock and no descriptor.

use std::net::Ipv4Addr;
use std::ops::Range;

use crate::error::{Error, Result};
use crate::relay::frame::{self, Load, Shape, Unfit};
use crate::relay::path::{Conditions, Fate, Path, Random, Times};
use crate::relay::pool::{Held, IN_USE_BYTES_MAX, Landing, Pool};
use crate::relay::{PathReport, Report, Spec};

/// The addresses of one site.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Network {
    address: u32,
    mask: u32,
}

impl Network {
    /// Reads `10.1.0.0/16`.
    fn parse(text: &str) -> Result<Self> {
        let wrong = || Error::new(format!("{text:?} is no IPv4 network: write it as 10.1.0.0/16"));
        let (address, bits) = text.split_once('/').ok_or_else(wrong)?;
        let address = u32::from(address.parse::<Ipv4Addr>().map_err(|_| wrong())?);
        let bits = bits.parse::<u32>().ok().filter(|bits| *bits <= 32).ok_or_else(wrong)?;
        let mask = u32::MAX.checked_shl(32 - bits).unwrap_or(0);
        if address & !mask != 0 {
            return Err(wrong());
        }
        Ok(Self { address, mask })
    }

    fn holds(&self, address: u32) -> bool {
        address & self.mask == self.address
    }

    fn overlaps(&self, other: &Self) -> bool {
        self.holds(other.address) || other.holds(self.address)
    }
}

struct Link {
    from: usize,
    to: usize,
    path: Path<Held>,
}

/// A frame that has arrived, the device it goes to and the path it took.
pub(crate) struct Arrived {
    /// Index of the device.
    pub(crate) to: usize,
    /// The frame; goes back by [`Hub::done`].
    pub(crate) held: Held,
    link: usize,
    load: Load,
}

/// All paths and the frames on them.
pub(crate) struct Hub {
    networks: Vec<Network>,
    links: Vec<Link>,
    /// For each pair of sites, `from` x sites + `to`, its place in `links`.
    by_pair: Vec<Option<usize>>,
    pool: Pool,
    landing: Landing,
    /// Packets that arrive of the frame in `landing`.
    survivors: Vec<Range<u32>>,
    /// Everything that is not counted on a path.
    strays: Report,
}

impl Hub {
    /// The paths of `spec`, if it makes sense.
    pub(crate) fn new(spec: &Spec) -> Result<Self> {
        let networks = spec.devices.iter().map(|device| Network::parse(&device.network));
        let networks: Vec<Network> = networks.collect::<Result<_>>()?;
        for (index, network) in networks.iter().enumerate() {
            if networks[..index].iter().any(|other| other.overlaps(network)) {
                return Err(Error::new(format!("network {} is part of another", spec.devices[index].network)));
            }
        }
        let sites = networks.len();
        let mut hub = Self {
            networks,
            links: Vec::new(),
            by_pair: vec![None; sites * sites],
            pool: Pool::new(IN_USE_BYTES_MAX),
            landing: Landing::new(),
            survivors: Vec::new(),
            strays: Report::default(),
        };
        let mut seeds = Random::new(spec.seed);
        for path in &spec.paths {
            let (from, to) = (path.from, path.to);
            path.conditions.check()?;
            if from >= sites || to >= sites || from == to || hub.link_of(from, to).is_some() {
                return Err(Error::new(format!("path from {from} to {to} is given twice or joins no two sites")));
            }
            hub.by_pair[from * sites + to] = Some(hub.links.len());
            hub.links.push(Link { from, to, path: Path::new(path.conditions, seeds.next()) });
        }
        Ok(hub)
    }

    fn link_of(&self, from: usize, to: usize) -> Option<usize> {
        self.by_pair[from * self.networks.len() + to]
    }

    /// Where the next frame is read into.
    pub(crate) fn landing(&mut self) -> &mut [u8] {
        self.landing.room()
    }

    /// Takes the frame of `bytes` that was just read from device `from` into [`Hub::landing`].
    pub(crate) fn accept(&mut self, now_ns: u64, from: usize, bytes: usize) {
        let shape = match frame::parse(self.landing.read(bytes)) {
            Ok(shape) => shape,
            Err(Unfit::Ipv6) => return self.strays.ipv6_frames += 1,
            Err(Unfit::Malformed) => return self.strays.malformed_frames += 1,
        };
        let address = u32::from(shape.destination);
        let packets = u64::from(shape.load.packets);
        let Some(to) = self.networks.iter().position(|network| network.holds(address)) else {
            return self.strays.unroutable_packets += packets;
        };
        let Some(link) = self.link_of(from, to) else { return self.strays.unconnected_packets += packets };
        match self.links[link].path.offer(now_ns, shape.load, &mut self.survivors) {
            Fate::Gone => {}
            Fate::Arrives(times) if self.survivors.first() == Some(&(0..shape.load.packets)) => {
                let held = self.pool.keep(&mut self.landing, bytes);
                carry(&mut self.links[link].path, &mut self.strays, times, shape.load, held);
            }
            Fate::Arrives(times) => self.carry_pieces(link, times, &shape, bytes),
        }
    }

    /// Sends on the frames between the packets that are gone.
    fn carry_pieces(&mut self, link: usize, times: Times, shape: &Shape, bytes: usize) {
        let Self { links, landing, survivors, pool, strays, .. } = self;
        for piece in frame::split(landing.read(bytes), shape, survivors) {
            let held = pool.take(piece.frame_bytes()).map(|mut held| {
                piece.write_to(held.frame_mut());
                held
            });
            carry(&mut links[link].path, strays, times, piece.load, held);
        }
    }

    /// When the next frame arrives anywhere.
    pub(crate) fn next_due_ns(&self) -> Option<u64> {
        self.links.iter().filter_map(|link| link.path.next_due_ns()).min()
    }

    /// How many paths there are, for [`Hub::arrived`].
    pub(crate) fn paths(&self) -> usize {
        self.links.len()
    }

    /// The next frame of path `link`, if it has arrived by now.
    pub(crate) fn arrived(&mut self, link: usize, now_ns: u64) -> Option<Arrived> {
        let to = self.links[link].to;
        self.links[link].path.take(now_ns).map(|(held, load)| Arrived { to, held, link, load })
    }

    /// Takes back a frame after it was handed on, or refused by the device.
    pub(crate) fn done(&mut self, arrived: Arrived, refused: bool) {
        if refused {
            self.links[arrived.link].path.refuse(&arrived.load);
        }
        self.pool.free(arrived.held);
    }

    /// Changes the conditions of one path.
    pub(crate) fn set(&mut self, now_ns: u64, from: usize, to: usize, conditions: Conditions) -> Result<()> {
        conditions.check()?;
        let sites = self.networks.len();
        let link = if from < sites && to < sites { self.link_of(from, to) } else { None };
        let link = link.ok_or_else(|| Error::new(format!("there is no path from {from} to {to}")))?;
        let Self { links, pool, .. } = self;
        links[link].path.set(now_ns, conditions, |held| pool.free(held));
        Ok(())
    }

    /// What has happened so far.
    pub(crate) fn report(&self) -> Report {
        let one = |link: &Link| PathReport { from: link.from, to: link.to, counts: link.path.counts().clone() };
        let paths = self.links.iter().map(one).collect();
        Report { paths, buffers_in_use_bytes: self.pool.in_use_bytes() as u64, ..self.strays.clone() }
    }
}

/// Sends a frame on its way, if there was memory to hold it.
fn carry(path: &mut Path<Held>, strays: &mut Report, times: Times, load: Load, held: Option<Held>) {
    match held {
        Some(held) => path.carry(times, load, held),
        None => {
            path.starve(load);
            strays.out_of_memory_packets += u64::from(load.packets);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::relay::{Device, PathSpec};

    #[test]
    fn what_finds_no_memory_is_dropped_and_counted_and_memory_comes_back() {
        let device = |network: &str| Device { fd: 0, network: network.into() };
        let conditions = Conditions { delay_us: 1, ..Conditions::default() };
        let spec = Spec {
            devices: vec![device("10.1.0.0/16"), device("10.2.0.0/16")],
            paths: vec![PathSpec { from: 0, to: 1, conditions }],
            core: None,
            seed: 1,
        };
        let mut hub = Hub::new(&spec).expect("a good specification");
        hub.pool = Pool::new(5_000);
        let mut frame = [0; 30];
        frame[10..14].copy_from_slice(&[0x45, 0, 0, 20]);
        frame[26..30].copy_from_slice(&[10, 2, 0, 1]);
        for _ in 0..2 {
            for _ in 0..3 {
                hub.landing()[..30].copy_from_slice(&frame);
                hub.accept(0, 0, 30);
            }
            for _ in 0..2 {
                let arrived = hub.arrived(0, 1_000).expect("two small buffers fit into 5,000 bytes");
                assert_eq!((arrived.to, arrived.held.frame()), (1, &frame[..]));
                hub.done(arrived, false);
            }
            assert!(hub.arrived(0, 1_000).is_none());
        }
        let report = hub.report();
        assert_eq!((report.out_of_memory_packets, report.buffers_in_use_bytes), (2, 0));
        assert_eq!((report.paths[0].counts.dropped_packets, report.paths[0].counts.delivered_packets), (2, 4));
    }
}
