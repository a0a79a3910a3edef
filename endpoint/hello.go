package endpoint

import (
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"

	"github.com/sharedtensor/sharedtensor/wire"
)

// labelBytes is the most that a label may have.
const labelBytes = 64

// introduction is the server's hello.
func (s *Server) introduction() wire.Hello {
	return wire.Hello{
		Server: s.id, Version: Version(), PID: int32(os.Getpid()), Label: shortLabel(s.opts.Label), Devices: s.devices.describe(),
	}
}

// introduction is the client's hello.
func (c *Client) introduction() wire.Hello {
	label := c.opts.Label
	if label == "" {
		label = filepath.Base(os.Args[0])
	}
	return wire.Hello{Version: Version(), PID: int32(os.Getpid()), Label: shortLabel(label), Devices: c.devices.describe()}
}

// describe lists the devices for the peer.
func (s deviceSet) describe() []wire.DeviceInfo {
	list := make([]wire.DeviceInfo, 0, len(s))
	for uuid, dev := range s {
		info := dev.Info()
		list = append(list, wire.DeviceInfo{
			UUID: wire.UUID(uuid), Type: int32(info.Type), Index: int32(info.Index), Name: info.Name,
		})
	}
	return list
}

// shortLabel makes a label fit to be shown: a peer may have put anything into it.
func shortLabel(label string) string {
	clean := strings.Map(func(r rune) rune {
		if r == utf8.RuneError || !unicode.IsPrint(r) {
			return -1
		}
		return r
	}, label)
	for len(clean) > labelBytes {
		_, size := utf8.DecodeLastRuneInString(clean)
		clean = clean[:len(clean)-size]
	}
	return clean
}

// Version is the version of this module as it was built into the program, such as "v0.1.0", or "devel".
func Version() string { return version() }

var version = sync.OnceValue(func() string {
	const path = "github.com/sharedtensor/sharedtensor"
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "devel"
	}
	for _, m := range append(info.Deps, &info.Main) {
		if m.Path == path && m.Version != "" && m.Version != "(devel)" {
			return m.Version
		}
	}
	return "devel"
})
