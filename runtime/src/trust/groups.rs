//! Groups of one user. Where each user has a group of its own, files are made writable by it, and nobody else is in it.

use std::sync::OnceLock;

/// True if nobody but `user` is in `group`, by this system's own lists. A group that they do not have, such as one of a
/// directory service, may have anybody.
pub(super) fn private(user: u32, group: u32) -> bool {
    static LISTS: OnceLock<[String; 2]> = OnceLock::new();
    let [users, groups] = LISTS.get_or_init(|| {
        ["/etc/passwd", "/etc/group"].map(|list| std::fs::read_to_string(list).unwrap_or_default())
    });
    private_by(users, groups, user, group)
}

fn private_by(users: &str, groups: &str, user: u32, group: u32) -> bool {
    let (user, group) = (user.to_string(), group.to_string());
    let (mut name, mut others) = (None, false);
    for line in users.lines() {
        let mut fields = line.split(':');
        let (Some(login), Some(number), Some(main)) = (fields.next(), fields.nth(1), fields.next())
        else {
            continue;
        };
        if number == user {
            name = Some(login);
        } else {
            others |= main == group;
        }
    }
    let (Some(name), false) = (name, others) else {
        return false;
    };
    let lists = groups.lines().filter_map(|line| {
        let fields: Vec<&str> = line.split(':').collect();
        (fields.get(2) == Some(&&group[..])).then(|| fields.get(3).copied().unwrap_or_default())
    });
    let lists: Vec<&str> = lists.collect();
    let mut members = lists.iter().flat_map(|list| list.split(','));
    !lists.is_empty() && members.all(|member| member.is_empty() || member.trim() == name)
}

#[cfg(test)]
mod tests {
    use super::private_by;

    const USERS: &str = "root:x:0:0:root:/root:/bin/sh\n\
        ada:x:1000:1000::/:/bin/sh\nbob:x:1001:1001::/:/bin/sh\ncy:x:1002:100::/:/bin/sh\n";
    const GROUPS: &str = "root:x:0:\nada:x:1000:\nbob:x:1001:bob\nusers:x:100:ada,cy\nsole:x:7:ada\ntwo:x:8:ada,bob\n";

    #[test]
    fn a_group_is_private_if_its_user_alone_is_in_it() {
        let private = |user, group| private_by(USERS, GROUPS, user, group);
        assert!(private(0, 0) && private(1000, 1000) && private(1001, 1001) && private(1000, 7));
        assert!(!private(1000, 8), "another member");
        assert!(!private(1000, 100), "another's main group");
        assert!(!private(1000, 1001), "another's own");
        assert!(!private(1000, 12), "a group of a directory service");
        assert!(!private(1003, 7), "a user of a directory service");
        assert!(!private_by("", "", 0, 0));
    }
}
