//! Paths in virtual time.

use super::*;

const MS: u64 = 1_000_000;
const S: u64 = 1_000 * MS;
/// A frame of one full packet, and one of 44 full packets and a short one.
const ONE: Load = Load { packets: 1, packet_bytes: 1_514, last_bytes: 1_514 };
const MANY: Load = Load { packets: 45, packet_bytes: 1_514, last_bytes: 166 };

/// A path and what it does with frames, each known by its number.
struct Bench {
    path: Path<u64>,
    runs: Vec<Range<u32>>,
    offered: u64,
}

impl Bench {
    fn new(conditions: Conditions) -> Self {
        conditions.check().expect("good conditions");
        Self { path: Path::new(conditions, 1), runs: Vec::new(), offered: 0 }
    }

    /// Offers a frame as the hub does; its time of arrival, if anything of it arrives.
    fn offer(&mut self, now_ns: u64, load: Load) -> Option<u64> {
        self.offered += 1;
        let Fate::Arrives(times) = self.path.offer(now_ns, load, &mut self.runs) else { return None };
        for run in &self.runs {
            self.path.carry(times, load.part(run), self.offered);
        }
        Some(times.due_ns)
    }

    /// The packets that arrive of the frame offered last, which are one run.
    fn only_run(&self) -> Range<u32> {
        let [run] = &self.runs[..] else { panic!("{:?}", self.runs) };
        run.clone()
    }

    /// Takes all that has arrived by `now_ns`: its numbers.
    fn take(&mut self, now_ns: u64) -> Vec<u64> {
        std::iter::from_fn(|| self.path.take(now_ns)).map(|(number, _)| number).collect()
    }

    fn set(&mut self, now_ns: u64, conditions: Conditions) -> usize {
        let mut gone = 0;
        self.path.set(now_ns, conditions, |_| gone += 1);
        gone
    }

    /// The counts, after checking that nothing is counted twice or not at all.
    fn counts(&self) -> Counts {
        let c = self.path.counts().clone();
        let packets = c.delivered_packets + c.lost_packets + c.dropped_packets + c.cut_packets + c.refused_packets;
        let bytes = c.delivered_bytes + c.lost_bytes + c.dropped_bytes + c.cut_bytes + c.refused_bytes;
        assert_eq!(c.offered_packets, packets + c.in_flight_packets);
        assert_eq!(c.offered_bytes, bytes + c.in_flight_bytes);
        c
    }
}

fn delay(delay_us: u64) -> Conditions {
    Conditions { delay_us, ..Conditions::default() }
}

#[test]
fn a_perfect_path_delivers_at_once_and_a_long_one_after_its_delay() {
    assert_eq!(Bench::new(Conditions::default()).offer(7, MANY), Some(7));
    let mut bench = Bench::new(delay(10_000));
    assert_eq!(bench.offer(5, MANY), Some(5 + 10 * MS));
    assert_eq!(bench.path.next_due_ns(), Some(5 + 10 * MS));
    assert!(bench.take(10 * MS + 4).is_empty());
    assert_eq!(bench.take(10 * MS + 5), [1]);
    assert_eq!((bench.counts().delivered_packets, bench.counts().late_packets), (45, 0));
}

#[test]
fn goodput_is_the_rate() {
    for (rate, load) in [(10_000_000, ONE), (1_000_000_000, ONE), (10_000_000_000, MANY), (7_777_777, MANY)] {
        let mut bench = Bench::new(Conditions { rate_bits_s: Some(rate), ..delay(20_000) });
        // Twice the rate is offered for 2 s; the buffer is full after a while, so the transmitter is never idle.
        let gap_ns = load.bytes() * 4 * S / rate;
        let mut now_ns = 0;
        while now_ns < 2 * S {
            bench.offer(now_ns, load);
            bench.take(now_ns);
            now_ns += gap_ns;
        }
        let counts = bench.counts();
        let seconds = (now_ns - gap_ns - 20 * MS) as f64 / S as f64;
        let share = counts.delivered_bytes as f64 * 8.0 / seconds / rate as f64;
        assert!((share - 1.0).abs() < 0.035, "{share} of {rate} bit/s");
        assert!(counts.dropped_packets > 0, "what is over the rate is dropped");
    }
}

#[test]
fn no_rounding_adds_up() {
    // At 3 Gbit/s a packet takes 4037 1/3 ns.
    let mut bench = Bench::new(Conditions { rate_bits_s: Some(3_000_000_000), ..Conditions::default() });
    let due: Vec<u64> = (0..150).filter_map(|_| bench.offer(0, ONE)).collect();
    assert_eq!(due[0], 4_037);
    assert_eq!(due[149], 605_600);
}

#[test]
fn a_full_buffer_drops_the_tail_also_of_one_frame() {
    let conditions =
        Conditions { rate_bits_s: Some(8_000_000), buffer_bytes: Some(10 * 1_514 + 100), ..Conditions::default() };
    let mut bench = Bench::new(conditions);
    // 1 byte each microsecond: ten packets of the 45 fit.
    assert_eq!(bench.offer(0, MANY), Some(15_140_000));
    assert_eq!(bench.only_run(), 0..10);
    assert_eq!((bench.counts().dropped_packets, bench.counts().in_flight_packets), (35, 10));
    assert_eq!(bench.offer(0, ONE), None, "full");
    assert_eq!(bench.offer(1_413_000, ONE), None, "one byte short");
    assert_eq!(bench.offer(1_414_000, ONE), Some(16_654_000), "room for one when as much has left");
    assert_eq!(bench.take(16_654_000), [1, 4]);
}

#[test]
fn an_idle_transmitter_takes_one_packet_however_small_the_buffer() {
    let mut bench = Bench::new(Conditions { rate_bits_s: Some(8_000), buffer_bytes: Some(0), ..Conditions::default() });
    assert!(bench.offer(0, MANY).is_some());
    assert_eq!(bench.only_run(), 0..1);
    assert_eq!(bench.offer(1_513 * MS, ONE), None);
    assert!(bench.offer(1_514 * MS, ONE).is_some());
}

#[test]
fn without_a_rate_the_buffer_bounds_what_is_in_flight() {
    let mut bench = Bench::new(Conditions { buffer_bytes: Some(MANY.bytes() + 1_514), ..delay(1_000) });
    assert!(bench.offer(0, MANY).is_some());
    assert!(bench.offer(0, MANY).is_some());
    assert_eq!(bench.only_run(), 0..1);
    assert_eq!(bench.offer(0, ONE), None);
    bench.take(MS);
    assert!(bench.offer(MS, ONE).is_some());
    assert_eq!(bench.counts().dropped_packets, 45);
}

#[test]
fn default_buffers() {
    let buffer = |rate, delay_us| Conditions { rate_bits_s: rate, ..delay(delay_us) }.buffer();
    assert_eq!(buffer(None, 0), 256 << 20);
    assert_eq!(buffer(Some(10_000_000), 0), 256 << 10);
    assert_eq!(buffer(Some(1_000_000_000), 50_000), 12_500_000);
    assert_eq!(buffer(Some(10_000_000_000), 500), 1_250_000);
    assert_eq!(buffer(Some(1_000_000_000_000), 3_600_000_000), 900_000_000_000_000);
}

#[test]
fn losses_are_their_share_of_the_packets_also_within_frames() {
    for loss in [0.001, 0.01, 0.3] {
        for load in [ONE, MANY] {
            let mut bench = Bench::new(Conditions { loss, ..Conditions::default() });
            let frames = 200_000 / u64::from(load.packets);
            let (mut pairs, mut last) = (0, false);
            for now_ns in 0..frames {
                bench.offer(now_ns, load);
                for packet in 0..load.packets {
                    let lost = !bench.runs.iter().any(|run| run.contains(&packet));
                    pairs += u64::from(lost && last);
                    last = lost;
                }
                bench.take(now_ns);
            }
            let counts = bench.counts();
            let packets = counts.offered_packets as f64;
            // Five standard deviations: for the share, and for that of two in a row, which tells they are independent.
            for (count, chance) in [(counts.lost_packets, loss), (pairs, loss * loss)] {
                let (mean, deviation) = (packets * chance, (packets * chance * (1.0 + 2.0 * loss)).sqrt());
                assert!((count as f64 - mean).abs() < 5.0 * deviation + 1.0, "{count} of {packets} for {chance}");
            }
        }
    }
}

#[test]
fn loss_of_all_or_nothing_is_exact() {
    let mut all = Bench::new(Conditions { loss: 1.0, ..Conditions::default() });
    let mut none = Bench::new(Conditions::default());
    for now_ns in 0..1_000 {
        assert_eq!(all.offer(now_ns, MANY), None);
        assert!(none.offer(now_ns, MANY).is_some());
    }
    assert_eq!(all.counts().lost_packets, 45_000);
    assert_eq!(none.counts().lost_packets, 0);
}

#[test]
fn the_same_seed_loses_the_same_packets() {
    let lost = |seed| {
        let mut path = Path::<()>::new(Conditions { loss: 0.1, ..Conditions::default() }, seed);
        let mut runs = Vec::new();
        path.offer(0, MANY, &mut runs);
        runs
    };
    assert_eq!(lost(3), lost(3));
    assert_ne!(lost(3), lost(4));
}

#[test]
fn jitter_spreads_arrivals_and_reorders_none() {
    let mut bench = Bench::new(Conditions { jitter_us: 5_000, ..delay(10_000) });
    let (mut last, mut least, mut most) = (0, u64::MAX, 0);
    for now_ns in (0..S).step_by(700_000) {
        let due_ns = bench.offer(now_ns, ONE).expect("no loss");
        assert!(due_ns >= last, "order is kept");
        (last, least, most) = (due_ns, least.min(due_ns - now_ns), most.max(due_ns - now_ns));
    }
    assert!((10 * MS..10 * MS + MS).contains(&least), "{least}");
    assert!((14 * MS..=15 * MS).contains(&most), "{most}");
    let numbers = bench.take(2 * S);
    assert!(numbers.is_sorted() && numbers.len() as u64 == bench.offered);
}

#[test]
fn a_cut_takes_what_is_in_flight_and_all_that_comes() {
    let mut bench = Bench::new(Conditions { rate_bits_s: Some(1_000_000), ..delay(10_000) });
    bench.offer(0, ONE);
    bench.offer(0, MANY);
    let before = bench.path.conditions;
    assert_eq!(bench.set(MS, Conditions { cut: true, ..before }), 2);
    assert_eq!((bench.counts().cut_packets, bench.counts().in_flight_packets), (46, 0));
    assert_eq!(bench.offer(2 * MS, ONE), None);
    assert_eq!(bench.counts().cut_packets, 47);
    assert_eq!(bench.path.next_due_ns(), None);
    assert_eq!(bench.set(3 * MS, before), 0);
    assert_eq!(bench.offer(3 * MS, ONE), Some(3 * MS + 12_112_000 + 10 * MS), "the transmitter is idle again");
}

#[test]
fn a_shorter_delay_brings_all_nearer_and_reorders_none() {
    let mut bench = Bench::new(delay(100_000));
    bench.offer(0, ONE);
    bench.offer(60 * MS, ONE);
    bench.set(70 * MS, delay(20_000));
    assert_eq!(bench.take(70 * MS), [1], "it has been on its way for longer than the new delay");
    assert_eq!(bench.counts().worst_late_us, 0, "and is not late");
    assert_eq!(bench.offer(70 * MS, ONE), Some(90 * MS), "the new delay is in force at once");
    assert_eq!(bench.take(80 * MS), [2]);
    assert_eq!(bench.take(90 * MS), [3]);
}

#[test]
fn a_longer_delay_holds_back_only_what_sets_out_later() {
    let mut bench = Bench::new(delay(20_000));
    bench.offer(0, ONE);
    bench.set(MS, delay(100_000));
    assert_eq!(bench.offer(MS, ONE), Some(101 * MS));
    assert_eq!(bench.take(20 * MS), [1]);
}

#[test]
fn a_new_rate_holds_for_what_waits() {
    let rate = |rate_bits_s| Conditions { rate_bits_s, ..delay(10_000) };
    let mut bench = Bench::new(rate(Some(8_000_000)));
    // 1 byte each microsecond: a packet each 1.514 ms.
    for _ in 0..3 {
        bench.offer(0, ONE);
    }
    bench.set(1_514_000, rate(Some(80_000_000)));
    let due = |bench: &Bench| bench.path.queue.iter().map(|parcel| parcel.times.due_ns).collect::<Vec<_>>();
    assert_eq!(due(&bench), [11_514_000, 11_665_400, 11_816_800]);
    assert_eq!(bench.offer(1_514_000, ONE), Some(11_968_200));
    bench.set(1_514_000, rate(None));
    assert_eq!(due(&bench), [11_514_000; 4]);
    assert_eq!(bench.offer(1_515_000, ONE), Some(11_515_000));
}

/// Whatever is changed in whatever order: nothing overtakes, and what arrives is all that was to.
#[test]
fn no_change_of_conditions_reorders_or_loses_count() {
    let mut random = Random::new(9);
    for _ in 0..200 {
        let mut bench = Bench::new(Conditions::default());
        let (mut now_ns, mut last) = (0, 0);
        for _ in 0..300 {
            now_ns += random.next() % MS;
            if random.next().is_multiple_of(20) {
                let conditions = Conditions {
                    rate_bits_s: (random.next().is_multiple_of(2)).then(|| 1_000 + random.next() % 10_000_000_000),
                    delay_us: random.next() % 50_000,
                    jitter_us: random.next() % 5_000,
                    loss: if random.next().is_multiple_of(2) { 0.1 } else { 0.0 },
                    cut: random.next().is_multiple_of(8),
                    buffer_bytes: (random.next().is_multiple_of(2)).then(|| random.next() % 1_000_000),
                };
                bench.set(now_ns, conditions);
            }
            bench.offer(now_ns, if random.next().is_multiple_of(2) { ONE } else { MANY });
            let due: Vec<u64> = bench.path.queue.iter().map(|parcel| parcel.times.due_ns).collect();
            assert!(due.is_sorted(), "{due:?}");
            for number in bench.take(now_ns) {
                assert!(number >= last, "{number} after {last}");
                last = number;
            }
            bench.counts();
        }
    }
}

#[test]
fn lateness_refusals_and_starvation_are_counted() {
    let mut bench = Bench::new(delay(1_000));
    bench.offer(0, MANY);
    bench.offer(0, ONE);
    bench.take(2 * MS);
    assert_eq!((bench.counts().late_packets, bench.counts().worst_late_us), (0, 1_000), "1 ms is not over 1 ms");
    bench.offer(2 * MS, MANY);
    let (_, load) = bench.path.take(4 * MS + 1_000).expect("arrived");
    assert_eq!((bench.counts().late_packets, bench.counts().worst_late_us), (45, 1_001));
    bench.path.refuse(&load);
    assert_eq!((bench.counts().refused_packets, bench.counts().delivered_packets), (45, 46));
    assert_ne!(bench.path.offer(5 * MS, ONE, &mut bench.runs), Fate::Gone);
    bench.path.starve(ONE);
    assert_eq!(bench.counts().dropped_packets, 1);
}

#[test]
fn impossible_conditions_are_refused() {
    let good = Conditions::default();
    for (what, wrong) in [
        ("rate_bits_s", Conditions { rate_bits_s: Some(0), ..good }),
        ("delay_us", Conditions { delay_us: u64::MAX, ..good }),
        ("jitter_us", Conditions { jitter_us: u64::MAX, ..good }),
        ("loss", Conditions { loss: 1.01, ..good }),
        ("loss", Conditions { loss: f64::NAN, ..good }),
    ] {
        let error = wrong.check().expect_err(what).to_string();
        assert!(error.contains(what), "{error}");
    }
}
