package command

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/sharedtensor/sharedtensor/cmd/sharedtensor/internal/cli"
	"github.com/sharedtensor/sharedtensor/cmd/sharedtensor/internal/term"
	"github.com/sharedtensor/sharedtensor/internal/userns"
)

// shm checks /dev/shm. This module uses memfds, which its size does not limit, but data loaders and other programs need
// it.
func shm() (finding, bool) {
	const check, path = "/dev/shm", "/dev/shm"
	if _, err := os.Stat(path); err != nil {
		return warn(check, "sharedtensor does not need it; mount a tmpfs there for programs that do", "%v; memfds do not need it", err), true
	}
	var fs syscall.Statfs_t
	if err := syscall.Statfs(path, &fs); err != nil {
		return warn(check, "", "%v; memfds do not need it", os.NewSyscallError("statfs", err)), true
	}
	free, total := int64(fs.Bavail)*int64(fs.Bsize), int64(fs.Blocks)*int64(fs.Bsize)
	return ok(check, "%s of %s free; it does not limit memfds", term.FormatBytes(free), term.FormatBytes(total)), true
}

// examineDeployment checks what the page docs/production.md describes: users, containers, descriptors, and what survives
// the end of an owner.
func examineDeployment(o *cli.OwnerFlags) []finding {
	findings := []finding{userFinding(os.DirFS("/"), os.Geteuid(), os.Getegid()), pidFinding(os.DirFS("/")), descriptorFinding()}
	path, err := o.Path(0)
	if err != nil {
		return findings
	}
	return append(findings, admitsFinding(path), survivesFinding(path))
}

// userFinding reports the user, and whether a user namespace hides the users of other processes.
func userFinding(root fs.FS, euid, egid int) finding {
	const check = "user"
	who := fmt.Sprintf("uid %d, gid %d", euid, egid)
	mapping, err := userns.Users(root)
	overflow := userns.OverflowUser(root)
	switch {
	case err != nil:
		return warn(check, "mount /proc; until then uid "+strconv.Itoa(int(overflow))+" is trusted by no process", "%s; the mapping of the user namespace is unknown: %v", who, err)
	case mapping.Complete():
		return ok(check, "%s, not in a user namespace; owner and clients run as the same user, or trust each other by --allow-uid, --policy and --owner-uid", who)
	case len(mapping) == 0:
		return fail(check, "map the users of owner and clients (unshare --map-root-user, podman --userns=keep-id, or hostUsers of the pod)",
			"%s, in a user namespace without a mapping: every user appears as %d, so owners and clients refuse each other", who, overflow)
	case uint32(euid) == overflow:
		return fail(check, "run as another mapped uid",
			"%s, in a user namespace with an incomplete mapping: every unmapped user appears as %d, so owners and clients refuse it", who, overflow)
	}
	m := mapping[0]
	return warn(check, fmt.Sprintf("give all containers of an owner and its clients the same mapping; a user without one appears as %d and is refused", overflow),
		"%s, in a user namespace (uid %d here is %d outside, %d ids)", who, m.Inside, m.Outside, m.Count)
}

// pidFinding reports whether this process is in a nested PID namespace.
func pidFinding(root fs.FS) finding {
	const check = "pid namespace"
	text, err := fs.ReadFile(root, "proc/self/status")
	if err != nil {
		return warn(check, "mount /proc", "%v", err)
	}
	for line := range strings.Lines(string(text)) {
		if ids, found := strings.CutPrefix(line, "NSpid:"); found && len(strings.Fields(ids)) > 1 {
			return ok(check, "nested: peers outside appear with pid 0, which only affects what is shown")
		}
	}
	return ok(check, "processes of the socket's users are visible by their pids")
}

// fewDescriptors is the limit below which an owner runs out of descriptors with about a hundred clients.
const fewDescriptors = 4096

// descriptorFinding reports how many clients the limit of descriptors allows. An owner uses an eighth of it for them.
func descriptorFinding() finding {
	const check = "clients of an owner"
	var l syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &l); err != nil {
		return warn(check, "", "%v", os.NewSyscallError("getrlimit", err))
	}
	clients := min(l.Cur/8, 16384)
	if l.Cur < fewDescriptors {
		return warn(check, "ulimit -n 65536, or LimitNOFILE=65536 in the unit", "RLIMIT_NOFILE %d permits %d", l.Cur, clients)
	}
	return ok(check, "RLIMIT_NOFILE %d permits %d", l.Cur, clients)
}

// admitsFinding reports which users can reach a socket.
func admitsFinding(path string) finding {
	const check = "users of the socket"
	dir, err := os.Stat(filepath.Dir(path))
	if errors.Is(err, fs.ErrNotExist) {
		return ok(check, "an owner makes %s for its own user", filepath.Dir(path))
	}
	if err != nil {
		return warn(check, "", "%v", err)
	}
	enter := dir.Mode().Perm() & 0o011
	socket, err := os.Stat(path)
	if err != nil {
		if enter == 0 {
			return ok(check, "%s admits its owner; for others use a directory with mode 0755 or 0711", filepath.Dir(path))
		}
		return ok(check, "%s admits other users; an owner checks each client", filepath.Dir(path))
	}
	st := socket.Sys().(*syscall.Stat_t)
	switch mode := socket.Mode().Perm(); {
	case mode&0o002 != 0 && enter&0o001 != 0:
		return ok(check, "everyone reaches it; its owner, uid %d, checks each client", st.Uid)
	case mode&0o066 != 0 && enter == 0:
		return warn(check, "chmod o+x "+filepath.Dir(path), "the socket admits others, but they cannot enter %s", filepath.Dir(path))
	case mode&0o020 != 0:
		return ok(check, "uid %d and group %d", st.Uid, st.Gid)
	default:
		return ok(check, "uid %d", st.Uid)
	}
}

// survivesFinding reports what remains of a model when its owner ends.
func survivesFinding(path string) finding {
	const check = "after the owner's end"
	if !cli.Alive(path) {
		return ok(check, "readers keep what they mapped; with serve --keep the next owner serves the same versions")
	}
	if cli.Alive(path + ".keep") {
		return ok(check, "a keeper holds the models: the next owner serves the same versions at once")
	}
	return warn(check, "start it with --keep, or --keep=systemd in a unit",
		"no keeper runs: readers keep what they mapped, new readers wait until files are loaded again (unless the owner has --keep=systemd or --keep=dir:PATH)")
}
