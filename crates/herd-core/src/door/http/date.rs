//! Dates as HTTP writes them (RFC 9110 §5.6.7, IMF-fixdate).

/// A date as text, such as `Sun, 06 Nov 1994 08:49:37 GMT`; the shell makes one a second and lends it to responses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HttpDate {
    unix_s: i64,
    text: [u8; 29],
}

const DAY_S: i64 = 86_400;
const DAYS: &[u8; 21] = b"ThuFriSatSunMonTueWed";
const MONTHS: &[u8; 36] = b"JanFebMarAprMayJunJulAugSepOctNovDec";
/// 0000-01-01 and 9999-12-31T23:59:59, s since 1970: what four digits of a year can tell.
const FIRST_S: i64 = -62_167_219_200;
const LAST_S: i64 = 253_402_300_799;

impl HttpDate {
    /// The date `unix_s` seconds since 1970; outside the years 0 to 9999 the nearest within.
    pub fn from_unix_s(unix_s: i64) -> Self {
        let unix_s = unix_s.clamp(FIRST_S, LAST_S);
        let (days, second) = (unix_s.div_euclid(DAY_S), unix_s.rem_euclid(DAY_S));
        let (year, month, day) = civil(days);
        let mut text = *b"Thu, 01 Jan 1970 00:00:00 GMT";
        let weekday = 3 * days.rem_euclid(7) as usize;
        text[0..3].copy_from_slice(&DAYS[weekday..weekday + 3]);
        put_digits(&mut text[5..7], day);
        text[8..11].copy_from_slice(&MONTHS[3 * month..3 * month + 3]);
        put_digits(&mut text[12..16], year);
        put_digits(&mut text[17..19], second / 3600);
        put_digits(&mut text[20..22], second / 60 % 60);
        put_digits(&mut text[23..25], second % 60);
        Self { unix_s, text }
    }

    /// Its 29 bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.text
    }

    /// The earlier of two.
    pub(super) fn earlier(self, other: Self) -> Self {
        if other.unix_s < self.unix_s { other } else { self }
    }
}

/// Year, month (0 to 11) and day (1 to 31) of a day since 1970, from year 0 on.
///
/// Counts in years that begin in March, so that the leap day is the last of its year; 400 years have 146,097 days.
pub fn civil(days: i64) -> (i64, usize, i64) {
    let since_march = days + 719_468;
    let (era, day_of_era) = (since_march.div_euclid(146_097), since_march.rem_euclid(146_097));
    let leap_days = day_of_era / 1_460 - day_of_era / 36_524 + day_of_era / 146_096;
    let year_of_era = (day_of_era - leap_days) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let months_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * months_from_march + 2) / 5 + 1;
    let month = ((months_from_march + 2) % 12) as usize;
    let year = era * 400 + year_of_era + i64::from(month < 2);
    (year, month, day)
}

fn put_digits(place: &mut [u8], mut value: i64) {
    for digit in place.iter_mut().rev() {
        *digit = b'0' + (value % 10) as u8;
        value /= 10;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(unix_s: i64) -> String {
        String::from_utf8(HttpDate::from_unix_s(unix_s).as_bytes().to_vec()).expect("ASCII")
    }

    #[test]
    fn dates_are_those_of_the_calendar() {
        assert_eq!(text(784_111_777), "Sun, 06 Nov 1994 08:49:37 GMT");
        assert_eq!(text(0), "Thu, 01 Jan 1970 00:00:00 GMT");
        assert_eq!(text(-1), "Wed, 31 Dec 1969 23:59:59 GMT");
        assert_eq!(text(951_782_400), "Tue, 29 Feb 2000 00:00:00 GMT");
        assert_eq!(text(951_868_800), "Wed, 01 Mar 2000 00:00:00 GMT");
        assert_eq!(text(4_107_542_400), "Mon, 01 Mar 2100 00:00:00 GMT");
        assert_eq!(text(i64::MAX), "Fri, 31 Dec 9999 23:59:59 GMT");
        assert_eq!(text(i64::MIN), "Sat, 01 Jan 0000 00:00:00 GMT");
    }

    #[test]
    fn each_day_follows_the_one_before() {
        let lengths = |year: i64| {
            let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
            [31, if leap { 29 } else { 28 }, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31]
        };
        let (mut year, mut month, mut day) = civil(-200_000);
        for days in -199_999..200_000 {
            day += 1;
            if day > lengths(year)[month] {
                (day, month) = (1, month + 1);
            }
            if month == 12 {
                (month, year) = (0, year + 1);
            }
            assert_eq!(civil(days), (year, month, day));
        }
    }
}
