package session_test

import (
	"context"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/fixture"
	"github.com/sharedtensor/sharedtensor/wire"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

func TestHostileFrames(t *testing.T) {
	s := fixture.HostileOwner(t)
	empty := []byte{0xa0}
	for _, c := range []struct {
		name string
		say  func(p *fixture.Peer)
		says string
	}{
		{"a response", func(p *fixture.Peer) { p.Conn.Send(wire.KindResponse, 1, empty) }, "does not send response frames"},
		{"a second hello", func(p *fixture.Peer) { p.Conn.Send(wire.KindHello, 0, empty) }, "does not send hello frames"},
		{"a request that is none", func(p *fixture.Peer) { p.Conn.Send(wire.KindRequest, 1, []byte{0x01}) }, "request 1"},
		{"nested arrays", func(p *fixture.Peer) { p.Conn.Send(wire.KindRequest, 1, []byte(strings.Repeat("\x81", 1000)+"\x00")) }, "request 1"},
		{"an indefinite length", func(p *fixture.Peer) { p.Conn.Send(wire.KindRequest, 1, []byte{0xbf, 0xff}) }, "request 1"},
		{"two items", func(p *fixture.Peer) { p.Conn.Send(wire.KindRequest, 1, []byte{0xa1, 0x01, 0x01, 0xa0}) }, "request 1"},
		{"a cancellation that is none", func(p *fixture.Peer) { p.Conn.Send(wire.KindCancel, 7, []byte{0x01}) }, "cancellation of request 7"},
		{"a frame beyond the limit", func(p *fixture.Peer) { p.Conn.Send(wire.KindRequest, 1, make([]byte, 2<<20)) }, "limit"},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := fixture.PolitePeer(t, s.Socket())
			c.say(p)
			p.HungUp(c.says)
		})
	}
}

func TestHostileRequestBeforeHello(t *testing.T) {
	s := fixture.HostileOwner(t)
	p := fixture.RawPeer(t, s.Socket())
	require.NoError(t, p.Conn.Send(wire.KindRequest, 1, []byte{0xa1, 0x01, 0x01}))
	p.HungUp("not a hello")
}

func TestSessionProtocolVersion(t *testing.T) {
	s := fixture.HostileOwner(t)
	p := fixture.RawPeer(t, s.Socket())
	_, err := message.ClientHandshake(p.Conn, message.Hello{Protocol: 900, Oldest: 900})
	require.ErrorContains(t, err, "versions")
}

func TestHostileRequests(t *testing.T) {
	s := fixture.HostileOwner(t)
	p := fixture.PolitePeer(t, s.Socket())
	require.Contains(t, p.Refused(message.CodeUnsupported, 0x9999, struct{}{}), "does not support")
	p.Refused(message.CodeSerialization, message.OpAcquire, []int{1})
	p.Refused(message.CodeNotFound, message.OpAcquire, message.Acquire{Name: "other"})
	p.Refused(message.CodeNotFound, message.OpAcquire, message.Acquire{Name: "m", Version: 77})
	p.Refused(message.CodeNotFound, message.OpRelease, message.Release{Leases: []uint64{99}})
	p.Refused(message.CodeNotFound, message.OpWithdraw, message.Withdraw{Name: "other"})
	p.Refused(message.CodeNotFound, message.OpUnwatch, message.Unwatch{Watch: 5})
	p.Refused(message.CodeInvalidArgument, message.OpWatch, message.Watch{Names: []string{"\x00"}})
	p.Refused(message.CodeResourceExhausted, message.OpWatch, message.Watch{Names: make([]string, 5000)})
	p.Refused(message.CodeNotFound, message.OpInfo, message.Info{Name: "m", Version: 12, Manifest: true})
}

func TestHostileReleaseOfOthersLeases(t *testing.T) {
	s := fixture.HostileOwner(t)
	holder, thief := fixture.PolitePeer(t, s.Socket()), fixture.PolitePeer(t, s.Socket())
	frame, err := holder.Send(message.OpAcquire, message.Acquire{Name: "m"})
	require.NoError(t, err)
	frame.Files.Close()
	var got message.Acquired
	require.NoError(t, message.Unmarshal(frame.Body, &got))
	thief.Refused(message.CodePermissionDenied, message.OpRelease, message.Release{Leases: []uint64{got.Lease}})
	require.Len(t, fixture.ListOf(s)[0].Versions[0].Holders, 1)
	holder.Conn.Close()
}

func TestHostilePublications(t *testing.T) {
	s := fixture.HostileOwner(t)
	loose, err := os.CreateTemp("/dev/shm", "unsealed")
	require.NoError(t, err)
	t.Cleanup(func() { loose.Close(); os.Remove(loose.Name()) })
	require.NoError(t, loose.Truncate(4096))
	plain, err := os.Open("/proc/self/exe")
	require.NoError(t, err)
	t.Cleanup(func() { plain.Close() })

	for _, c := range []struct {
		name  string
		code  message.Code
		spoil func(in *message.Publish, file **os.File)
	}{
		{"more bytes than the memory has", message.CodeInvalidArgument, func(in *message.Publish, _ **os.File) {
			in.Handles[0].Bytes, in.Manifest.Storages[0].Bytes = 1<<20, 1<<20
		}},
		{"an offset behind the end", message.CodeInvalidArgument, func(in *message.Publish, _ **os.File) { in.Handles[0].Offset = 1 << 40 }},
		{"a size beyond 63 bits", message.CodeProtocol, func(in *message.Publish, _ **os.File) { in.Handles[0].Bytes = 1 << 63 }},
		{"a manifest of another size", message.CodeInvalidArgument, func(in *message.Publish, _ **os.File) { in.Manifest.Storages[0].Bytes = 64 }},
		{"another device", message.CodeCapability, func(in *message.Publish, _ **os.File) { in.Handles[0].Device[3] ^= 1 }},
		{"another kind", message.CodeCapability, func(in *message.Publish, _ **os.File) { in.Handles[0].Kind = "tape" }},
		{"no descriptor", message.CodeProtocol, func(in *message.Publish, _ **os.File) { in.Handles[0].File = -1 }},
		{"a descriptor that did not come", message.CodeProtocol, func(in *message.Publish, _ **os.File) { in.Handles[0].File = 3 }},
		{"one descriptor twice", message.CodeProtocol, func(in *message.Publish, _ **os.File) { in.Handles = append(in.Handles, in.Handles[0]) }},
		{"no handle", message.CodeProtocol, func(in *message.Publish, _ **os.File) { in.Handles = nil }},
		{"memory that can shrink", message.CodeInvalidArgument, func(_ *message.Publish, f **os.File) { *f = loose }},
		{"a file", message.CodeInvalidArgument, func(_ *message.Publish, f **os.File) { *f = plain }},
		{"a tensor beyond the memory", message.CodeInvalidArgument, func(in *message.Publish, _ **os.File) { in.Manifest.Dims[3] = 1 }},
		{"no such data type", message.CodeInvalidArgument, func(in *message.Publish, _ **os.File) { in.Manifest.DTypes[0] = 250 }},
		{"columns that do not agree", message.CodeInvalidArgument, func(in *message.Publish, _ **os.File) { in.Manifest.Ranks[0] = 2 }},
		{"an empty tensor name", message.CodeInvalidArgument, func(in *message.Publish, _ **os.File) {
			in.Manifest.Names, in.Manifest.NameLengths = "", make([]byte, 4)
		}},
		{"a bad name", message.CodeInvalidArgument, func(in *message.Publish, _ **os.File) { in.Name = "" }},
	} {
		t.Run(c.name, func(t *testing.T) {
			in, file := fixture.Publication(t, true)
			c.spoil(&in, &file)
			message := fixture.PolitePeer(t, s.Socket()).Refused(c.code, message.OpPublish, in, file)
			require.NotEmpty(t, message)
		})
	}
	t.Run("memory that can still be mapped writable", func(t *testing.T) {
		in, file := fixture.Publication(t, false)
		message := fixture.PolitePeer(t, s.Socket()).Refused(message.CodePermissionDenied, message.OpPublish, in, file)
		require.Contains(t, message, "seal")
	})
	t.Run("none of it", func(t *testing.T) {
		in, file := fixture.Publication(t, true)
		p := fixture.PolitePeer(t, s.Socket())
		frame, err := p.Send(message.OpPublish, in, file)
		require.NoError(t, err)
		require.Equal(t, wire.KindResponse, frame.Kind, "%q", frame.Body)
		require.NoError(t, s.Withdraw(context.Background(), "n"))
	})
}

func TestHostileExtraDescriptors(t *testing.T) {
	s := fixture.HostileOwner(t)
	_, file := fixture.Publication(t, true)
	p := fixture.PolitePeer(t, s.Socket())
	for _, op := range []message.Op{message.OpPing, message.OpList, 0x9999} {
		_, err := p.Send(op, struct{}{}, file, file, file)
		require.NoError(t, err)
	}
	p.Conn.Close()
}
