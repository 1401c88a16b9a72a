//! What links are like: rates of cables and distances of the world, each with its reason, and the firewalls of sites.

use crate::relay::Conditions;

/// Bits per second on a cable, Ethernet headers included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Rate(pub(crate) u64);

impl Rate {
    /// A thin line: a branch office, a laboratory at its day of testing.
    pub(crate) const MBIT_10: Rate = Rate(10_000_000);
    /// Fast Ethernet, the farm of [HOC, Performance figures]; eight such links leave two cores idle time to spare.
    pub(crate) const MBIT_100: Rate = Rate(100_000_000);
    /// Gigabit Ethernet, the other row of [HOC, Performance figures].
    pub(crate) const GBIT_1: Rate = Rate(1_000_000_000);

    /// Bytes in a millisecond.
    fn bytes_per_ms(self) -> u64 {
        self.0 / 8_000
    }

    /// What may leave at once after a pause: 4 ms' worth. The shaper wakes up late when the processor is busy, and what
    /// it may send in more than this time is gone.
    pub(crate) fn burst_bytes(self) -> u64 {
        (4 * self.bytes_per_ms()).clamp(2 * 1_514, 512 * 1_024)
    }

    /// Packets in one frame: a millisecond's worth, so that the shaper never has to cut a frame up.
    pub(crate) fn frame_packets(self) -> u64 {
        (self.bytes_per_ms() / 1_514).clamp(1, 44)
    }

    /// What a host's own device queues: 200 ms, at 1 Gbit/s about the 32 MB of `fq_codel`, most systems' default
    /// (tc-fq_codel(8)). With a sixteenth of that, thousands of connections lose packets in the sender itself and the
    /// link idles while they wait to send again; with much more, the queue outlasts the 200 ms that TCP waits at least
    /// (RFC 6298 allows less than its second), and what only waits is sent twice.
    pub(crate) fn host_bytes(self) -> u64 {
        (200 * self.bytes_per_ms()).max(128 * 1_024)
    }

    /// What a switch's port holds: 50 ms, as cheap switches do, at least 128 KiB.
    pub(crate) fn port_bytes(self) -> u64 {
        (50 * self.bytes_per_ms()).max(128 * 1_024)
    }
}

/// Payload of a full TCP packet over its bytes with all headers, Ethernet's included: what a rate leaves for anyone.
pub(crate) const PAYLOAD_SHARE: f64 = 1_448.0 / 1_514.0;

/// What a packet's way through the relay takes besides its delay: being read, and waking who waits for it. Between 40
/// and 75 us were measured; the least of it is taken off the delay, so that a round trip is what it is called.
const PASSAGE_US: u64 = 40;

/// Half a round trip of `round_trip_us`, any rate, nothing lost.
pub(crate) fn distance(round_trip_us: u64) -> Conditions {
    Conditions { delay_us: (round_trip_us / 2).saturating_sub(PASSAGE_US), ..Conditions::default() }
}

/// Distances by name: round trip in microseconds, and what lies so far apart.
pub(crate) const DISTANCES: [(&str, u64); 4] = [
    // 50 to 100 km of fibre and two routers.
    ("city", 1_000),
    // 500 km: a national research network.
    ("country", 6_000),
    // 2,000 km: the sites of [WANFS §4].
    ("continent", 20_000),
    // Europe to the American east coast is 75 ms, to the west coast 140.
    ("ocean", 100_000),
];

/// Who may speak to the hosts of a site from outside it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Firewall {
    /// Everyone.
    #[default]
    Open,
    /// Nobody, but for answers to what was asked from within; and everyone on these TCP ports.
    Outbound(Vec<u16>),
    /// As `Outbound`, and the site's addresses mean nothing outside: what leaves carries the site's one outer address,
    /// and each of these TCP ports of that address leads to the host of this index within the site.
    Private(Vec<(u16, usize)>),
}

impl Firewall {
    /// The rules, for `nft -f -` at the site's way out, whose outer device is `wan`; `inner` gives a host's address.
    pub(crate) fn rules(&self, inner: impl Fn(usize) -> String) -> String {
        let (ports, forwards) = match self {
            Firewall::Open => return String::new(),
            Firewall::Outbound(ports) => (ports.clone(), &[][..]),
            Firewall::Private(forwards) => (forwards.iter().map(|(port, _)| *port).collect(), &forwards[..]),
        };
        let mut rules = String::from("table ip lab {\n");
        for hook in ["input", "forward"] {
            rules += &format!("chain {hook} {{ type filter hook {hook} priority 0; policy accept;\n");
            rules += "ct state established,related accept\n";
            for port in &ports {
                rules += &format!("iifname wan tcp dport {port} accept\n");
            }
            rules += "iifname wan drop\n}\n";
        }
        if matches!(self, Firewall::Private(_)) {
            rules += "chain out { type nat hook postrouting priority 100;\noifname wan masquerade\n}\n";
            rules += "chain in { type nat hook prerouting priority -100;\n";
            for (port, host) in forwards {
                rules += &format!("iifname wan tcp dport {port} dnat to {}\n", inner(*host));
            }
            rules += "}\n";
        }
        rules + "}\n"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_fits_the_burst_of_its_link() {
        for rate in [Rate(1_000_000), Rate::MBIT_10, Rate::MBIT_100, Rate::GBIT_1, Rate(10_000_000_000)] {
            assert!(rate.frame_packets() >= 1);
            assert!(rate.frame_packets() * 1_514 <= rate.burst_bytes(), "{rate:?}");
        }
        assert_eq!(Rate::GBIT_1.burst_bytes(), 500_000);
    }

    #[test]
    fn a_private_site_translates_and_an_open_one_has_no_rules() {
        let inner = |host: usize| format!("10.1.0.{host}");
        assert_eq!(Firewall::Open.rules(inner), "");
        let rules = Firewall::Private(vec![(7700, 2)]).rules(inner);
        assert!(rules.contains("masquerade") && rules.contains("tcp dport 7700 dnat to 10.1.0.2"), "{rules}");
        assert!(!Firewall::Outbound(vec![]).rules(inner).contains("nat"));
    }
}
