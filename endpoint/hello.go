package endpoint

import (
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"

	"github.com/sharedtensor/sharedtensor/wire/message"
)

const (
	// labelBytes is the most that a label may have.
	labelBytes = 64
	// sourceBytes is the most that the source of a publication may have.
	sourceBytes = 1024
)

// introduction is the server's hello.
func (s *Server) introduction() message.Hello {
	return message.Hello{
		Server: s.id, Version: Version(), PID: int32(os.Getpid()), Label: shortLabel(s.opts.Label), Devices: s.devices.Describe(),
		Features: features(),
	}
}

// introduction is the client's hello.
func (c *Client) introduction() message.Hello {
	label := c.opts.Label
	if label == "" {
		label = filepath.Base(os.Args[0])
	}
	return message.Hello{Version: Version(), PID: int32(os.Getpid()), Label: shortLabel(label), Devices: c.devices.Describe(), Features: features()}
}

// features are the optional parts of the protocol that this package has.
func features() []string { return []string{message.FeatureKeep} }

// shortLabel makes a label fit to be kept and shown.
func shortLabel(label string) string { return shortText(label, labelBytes) }

// shortText is what is kept of a text that a peer sent: its first printable characters, in at most limit bytes of their own, so that no
// part of a large text keeps all of it in memory.
func shortText(text string, limit int) string {
	var b strings.Builder
	for _, r := range text {
		if r == utf8.RuneError || !unicode.IsPrint(r) {
			continue
		}
		if b.Len()+utf8.RuneLen(r) > limit {
			break
		}
		b.WriteRune(r)
	}
	return strings.Clone(b.String())
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
