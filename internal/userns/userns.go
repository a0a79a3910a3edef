// Package userns decides which user and group ids identify a user.
//
// In a user namespace without a mapping for every id, the kernel shows each id without a mapping as the overflow id, usually
// 65534. Many users share that id, so it identifies none of them. This also holds if the namespace maps 65534 itself,
// because the kernel reports both alike.
//
// Credentials of sockets and owners of files must be compared by this package. A plain comparison would let any unmapped
// user of the host pass as a process that runs as 65534.
package userns

import (
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
)

// None is never the id of a user or group, because the kernel reserves it. It replaces the overflow id of an incomplete mapping.
const None = 1<<32 - 1

// defaultOverflow is the overflow id of a kernel that does not report one.
const defaultOverflow = 65534

// ids is one of the two kinds of ids.
type ids struct {
	mapping, overflow string
	complete          atomic.Bool // a complete mapping never changes
}

var (
	users  = ids{mapping: "proc/self/uid_map", overflow: "proc/sys/kernel/overflowuid"}
	groups = ids{mapping: "proc/self/gid_map", overflow: "proc/sys/kernel/overflowgid"}
	root   = os.DirFS("/")
)

// User returns uid, and [None] for the overflow uid of an incomplete mapping.
func User(uid uint32) uint32 { return users.known(uid) }

// Group returns gid, and [None] for the overflow gid of an incomplete mapping.
func Group(gid uint32) uint32 { return groups.known(gid) }

// Self reports whether uid is the effective user of this process. It is false for the overflow uid of a namespace with an
// incomplete mapping, even if this process runs as it.
func Self(uid uint32) bool { return uid == uint32(os.Geteuid()) && User(uid) != None }

// Unmapped describes why the kernel's credentials name no user. what is the process that has them.
func Unmapped(what string) string {
	return fmt.Sprintf("%s has uid %d, which stands for every user without a mapping in this user namespace (/proc/self/uid_map); give both processes the same mapping and a mapped uid",
		what, users.overflowID(root))
}

// known returns id, or None if id stands for unmapped ids.
func (k *ids) known(id uint32) uint32 {
	if k.complete.Load() {
		return id
	}
	if m, err := read(root, k.mapping); err == nil && m.Complete() {
		k.complete.Store(true)
		return id
	}
	if id == k.overflowID(root) {
		return None
	}
	return id
}

func (k *ids) overflowID(root fs.FS) uint32 {
	text, err := fs.ReadFile(root, k.overflow)
	if err != nil {
		return defaultOverflow
	}
	id, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 32)
	if err != nil {
		return defaultOverflow
	}
	return uint32(id)
}

// Range maps consecutive ids of a namespace to ids of its parent.
type Range struct {
	Inside  uint32 // the first id in the namespace
	Outside uint32 // the first id in the parent namespace
	Count   uint32 // the number of ids
}

// Mapping lists the mapped ids of a user namespace. It is empty until the namespace receives one.
type Mapping []Range

// Complete reports whether every id has a mapping, as outside of user namespaces.
func (m Mapping) Complete() bool {
	var n uint64
	for _, r := range m {
		n += uint64(r.Count)
	}
	return n >= None // None is reserved
}

// Users returns the mapping of users of this process's namespace. root is the root of the file system.
func Users(root fs.FS) (Mapping, error) { return read(root, users.mapping) }

// OverflowUser returns the uid that stands for users without a mapping. root is the root of the file system.
func OverflowUser(root fs.FS) uint32 { return users.overflowID(root) }

// read parses a mapping. A kernel without user namespaces has no such file, but has a /proc/self.
func read(root fs.FS, path string) (Mapping, error) {
	text, err := fs.ReadFile(root, path)
	if err != nil {
		if _, failed := fs.Stat(root, "proc/self/status"); failed == nil && os.IsNotExist(err) {
			return Mapping{{0, 0, None}}, nil
		}
		return nil, err
	}
	var m Mapping
	for line := range strings.Lines(string(text)) {
		var r Range
		if _, err := fmt.Sscan(line, &r.Inside, &r.Outside, &r.Count); err != nil {
			return nil, fmt.Errorf("/%s: %w", path, err)
		}
		m = append(m, r)
	}
	return m, nil
}

// Cause returns the reason that a file's uid names no user, for the end of an error text, or "".
func Cause(uid uint32) string {
	if User(uid) != None {
		return ""
	}
	return fmt.Sprintf(" (uid %d stands for every user without a mapping in this user namespace)", uid)
}
