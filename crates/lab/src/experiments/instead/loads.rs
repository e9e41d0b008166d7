//! What is offered: a crowd, the same with a SYN flood beneath it, or a greedy crowd beside polite users.

use std::fmt;
use std::net::Ipv4Addr;
use std::str::FromStr;

use ipnet::Ipv4Net;

use crate::experiments::slow_servers::CLIENTS;

/// Where the greedy come from: as few addresses as a scraper has.
pub const GREEDY: Ipv4Net = Ipv4Net::new_assert(Ipv4Addr::new(10, 98, 0, 0), 29);
/// Addresses of it that a host may have.
pub const GREEDY_ADDRESSES: u32 = (1 << (32 - GREEDY.prefix_len())) - 2;
/// What polite users ask for beside the greedy, in parts of the server's peak.
pub const POLITE: f64 = 0.5;

const FORMS: [(&str, Form); 2] = [("+flood", Form::Flood), ("+greedy", Form::Greedy)];

/// Who comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// A crowd, each of it from another address.
    Crowd,
    /// A crowd, and a SYN flood.
    Flood,
    /// A crowd of a few addresses, and polite users.
    Greedy,
}

/// A load.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Offered {
    /// What the crowd asks for, in multiples of the server's peak.
    pub multiple: f64,
    /// Who it is, and who comes beside it.
    pub form: Form,
}

/// Clients whose fates are counted together.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Part {
    /// What they ask for, in multiples of the server's peak.
    pub multiple: f64,
    /// Where they come from.
    pub sources: Ipv4Net,
}

impl Offered {
    /// Who connects. The first are those who should be served.
    pub fn parts(self) -> Vec<Part> {
        let part = |multiple, sources| Part { multiple, sources };
        match self.form {
            Form::Crowd | Form::Flood => vec![part(self.multiple, CLIENTS)],
            Form::Greedy => vec![part(POLITE, CLIENTS), part(self.multiple, GREEDY)],
        }
    }
}

impl FromStr for Offered {
    type Err = String;

    fn from_str(text: &str) -> Result<Offered, String> {
        let with = FORMS
            .iter()
            .find_map(|(word, form)| Some((text.strip_suffix(word)?, *form)));
        let (number, form) = with.unwrap_or((text, Form::Crowd));
        match number.parse() {
            Ok(multiple) if multiple > 0.0 && multiple <= 20.0 => Ok(Offered { multiple, form }),
            _ => Err(format!(
                "`{text}` is no multiple of the peak above 0 and at most 20, as 2, 2+flood or 2+greedy"
            )),
        }
    }
}

impl fmt::Display for Offered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = FORMS.iter().find(|(_, form)| *form == self.form);
        write!(f, "{}{}", self.multiple, word.map_or("", |(word, _)| word))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loads_are_read_as_they_are_written() {
        for (text, form) in [
            ("2", Form::Crowd),
            ("0.5", Form::Crowd),
            ("4+flood", Form::Flood),
            ("4+greedy", Form::Greedy),
        ] {
            let load: Offered = text.parse().unwrap();
            assert_eq!((load.to_string().as_str(), load.form), (text, form));
        }
        for text in ["0", "flood", "2+x", "21", "+greedy", "2+greedy+flood"] {
            assert!(text.parse::<Offered>().is_err(), "{text}");
        }
    }

    #[test]
    fn the_greedy_share_no_address_with_the_polite_whose_load_is_below_the_peak() {
        let load: Offered = "4+greedy".parse().unwrap();
        let [polite, greedy] = load.parts()[..] else {
            panic!("{:?}", load.parts())
        };
        assert_eq!((polite.multiple, greedy.multiple), (0.5, 4.0));
        assert!(!CLIENTS.contains(&GREEDY) && greedy.sources == GREEDY);
        assert_eq!(GREEDY.hosts().count() as u32, GREEDY_ADDRESSES);
        let crowd: Offered = "4".parse().unwrap();
        assert_eq!(crowd.parts().len(), 1);
    }
}
