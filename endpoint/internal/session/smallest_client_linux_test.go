package session_test

import (
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sharedtensor/sharedtensor/driver/drivertest"
	"github.com/sharedtensor/sharedtensor/driver/host"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/fixture"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// pageBlock is a block of SMALLEST.md: a frame of the client or the server, or content of memory.
type pageBlock struct {
	from   string
	files  int // number of its descriptors
	tokens []pageToken
}

// pageToken is a part of a block: bytes, or a word for bytes that the page cannot contain.
type pageToken struct {
	bytes []byte
	word  string
}

// pageLine is one line of a block: its tokens and the remark behind them.
type pageLine struct {
	tokens []pageToken
	remark string
}

// protocolFile reads a file of the protocol's documentation.
func protocolFile(t *testing.T, name string) string {
	t.Helper()
	found, err := filepath.Glob("../../../wire/" + name)
	require.NoError(t, err)
	if len(found) == 0 {
		found, err = filepath.Glob("../../../wire/*/" + name)
		require.NoError(t, err)
	}
	require.Len(t, found, 1)
	text, err := os.ReadFile(found[0])
	require.NoError(t, err)
	return string(text)
}

// pageLines splits a block into lines. Two spaces end the bytes of a line, except in the header of a frame whose length
// is a word.
func pageLines(t *testing.T, text string) []pageLine {
	t.Helper()
	var lines []pageLine
	for _, line := range strings.Split(strings.TrimSpace(text), "\n") {
		line = strings.Replace(strings.TrimSpace(line), "LENGTH   ", "LENGTH ", 1)
		code, remark, _ := strings.Cut(line, "  ")
		var tokens []pageToken
		for _, word := range strings.Fields(code) {
			bytes, err := hex.DecodeString(word)
			if err != nil {
				require.Regexp(t, `^[A-Z]+$`, word, line)
				tokens = append(tokens, pageToken{word: word})
				continue
			}
			tokens = append(tokens, pageToken{bytes: bytes})
		}
		lines = append(lines, pageLine{tokens, strings.TrimSpace(remark)})
	}
	return lines
}

// smallestPage parses the blocks of the page, and checks the remarks beside the bytes.
func smallestPage(t *testing.T) []pageBlock {
	t.Helper()
	head := regexp.MustCompile(`^(client|server|memory)(?: with (\d+) descriptors?, .*)?$`)
	keys := keyNames(t)
	var blocks []pageBlock
	for i, text := range strings.Split(protocolFile(t, "SMALLEST.md"), "```") {
		first, rest, _ := strings.Cut(strings.TrimPrefix(text, "\n"), "\n")
		found := head.FindStringSubmatch(first)
		if i%2 == 0 || found == nil {
			continue
		}
		b := pageBlock{from: found[1]}
		b.files, _ = strconv.Atoi(found[2])
		for n, line := range pageLines(t, rest) {
			b.tokens = append(b.tokens, line.tokens...)
			switch {
			case b.from == "memory":
			case n == 0:
				requireHeaderRemark(t, b.files, line)
			default:
				requireRemark(t, keys, line)
			}
		}
		blocks = append(blocks, b)
	}
	return blocks
}

// keyNames returns the names that keys have in messages, as "1 name".
func keyNames(t *testing.T) map[string]bool {
	t.Helper()
	var fields struct {
		Messages map[string][]struct {
			Key  int    `json:"key"`
			Name string `json:"name"`
		} `json:"messages"`
	}
	require.NoError(t, json.Unmarshal([]byte(protocolFile(t, "fields.json")), &fields))
	names := map[string]bool{}
	for _, message := range fields.Messages {
		for _, f := range message {
			names[fmt.Sprint(f.Key, " ", f.Name)] = true
		}
	}
	return names
}

// requireHeaderRemark checks the remark of a frame's header.
func requireHeaderRemark(t *testing.T, files int, line pageLine) {
	t.Helper()
	count := func(n uint32, what string) string {
		if n != 1 {
			what += "s"
		}
		return fmt.Sprint(n, " ", what)
	}
	kinds := []string{"", "hello", "request", "response", "error", "cancel", "event", "goodbye", "files"}
	require.Len(t, line.tokens, 4, "a header has four fields")
	length, kind, announced, id := line.tokens[0].bytes, line.tokens[1].bytes, line.tokens[2].bytes, line.tokens[3].bytes
	want := kinds[binary.BigEndian.Uint16(kind)] + ", " + count(uint32(binary.BigEndian.Uint16(announced)), "descriptor")
	want += fmt.Sprint(", id ", binary.BigEndian.Uint64(id))
	if length != nil {
		want = count(binary.BigEndian.Uint32(length), "byte") + ", " + want
	}
	require.Equal(t, want, line.remark)
	require.EqualValues(t, files, binary.BigEndian.Uint16(announced))
}

var (
	countRemark = regexp.MustCompile(`(\d+) (pair|element)s?$`)
	valueRemark = regexp.MustCompile(`^([a-z-]+): (?:(\d+)\b)?`)
	quoteRemark = regexp.MustCompile(`"(.*)"`)
)

// requireRemark checks the remark of bytes in a body: the number of pairs or elements, the name of the key, and the
// value.
func requireRemark(t *testing.T, keys map[string]bool, line pageLine) {
	t.Helper()
	first, last := line.tokens[0].bytes, line.tokens[len(line.tokens)-1]
	if found := valueRemark.FindStringSubmatch(line.remark); found != nil && len(line.tokens) > 1 && first[0] < 0x18 {
		require.True(t, keys[fmt.Sprint(first[0], " ", found[1])], "no message has a key %d %s", first[0], found[1])
	}
	if found := countRemark.FindStringSubmatch(line.remark); found != nil {
		kind := map[string]string{"pair": "a", "element": "8"}[found[2]]
		require.Equal(t, kind+found[1], hex.EncodeToString(last.bytes), line.remark)
	} else if found := valueRemark.FindStringSubmatch(line.remark); found != nil && found[2] != "" && last.bytes != nil {
		little := append(append([]byte{}, last.bytes...), make([]byte, 8)...)
		short := strconv.Itoa(int(last.bytes[len(last.bytes)-1]))
		require.Contains(t, []string{short, fmt.Sprint(binary.LittleEndian.Uint64(little))}, found[2], line.remark)
	}
	if found := quoteRemark.FindStringSubmatch(line.remark); found != nil {
		require.Equal(t, found[1], string(last.bytes))
	}
}

// hostBytes returns the bytes for HOST on this machine.
func hostBytes(t *testing.T) []byte {
	t.Helper()
	dev, err := host.Open()
	require.NoError(t, err)
	defer dev.Close()
	uuid := dev.Info().UUID
	text, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	require.NoError(t, err)
	boot, err := hex.DecodeString(strings.ReplaceAll(strings.TrimSpace(string(text)), "-", ""))
	require.NoError(t, err)
	require.Equal(t, boot, uuid[:])
	return boot
}

// encode returns the block as it is sent.
func (b pageBlock) encode(t *testing.T, host []byte) []byte {
	t.Helper()
	var out []byte
	for _, token := range b.tokens {
		if token.word != "" {
			require.Equal(t, "HOST", token.word, "what a client sends is known")
			token.bytes = host
		}
		out = append(out, token.bytes...)
	}
	return out
}

// requireMatch compares a received frame with the block.
func (b pageBlock) requireMatch(t *testing.T, host, got []byte) {
	t.Helper()
	rest := got
	for _, token := range b.tokens {
		n := len(token.bytes)
		switch token.word {
		case "":
		case "LENGTH":
			token.bytes = binary.BigEndian.AppendUint32(nil, uint32(len(got)-16))
			n = 4
		case "HOST":
			token.bytes, n = host, len(host)
		case "SERVER", "NAME":
			n = 32
		case "PID":
			n = itemBytes(t, rest, 0)
		case "VERSION", "MESSAGE":
			n = itemBytes(t, rest, 3)
		default:
			require.Fail(t, "the page does not say what stands for "+token.word)
		}
		require.GreaterOrEqual(t, len(rest), n, "%x", got)
		if token.bytes != nil {
			require.Equal(t, hex.EncodeToString(token.bytes), hex.EncodeToString(rest[:n]), "%d bytes before the end of %x", len(rest), got)
		}
		rest = rest[n:]
	}
	require.Empty(t, rest, "%x has more than the page", got)
}

// itemBytes returns the length of the number (0) or text (3) at the beginning of b.
func itemBytes(t *testing.T, b []byte, major byte) int {
	t.Helper()
	require.NotEmpty(t, b)
	require.Equal(t, major, b[0]>>5)
	value, head := uint64(b[0]&31), 1
	if value >= 24 {
		size := 1 << (value - 24)
		head += size
		require.LessOrEqual(t, head, min(len(b), 9))
		var wide [8]byte
		copy(wide[8-size:], b[1:head])
		value = binary.BigEndian.Uint64(wide[:])
	}
	if major == 3 {
		return head + int(value)
	}
	return head
}

// receiveRaw receives one frame as the page describes, with its descriptors.
func receiveRaw(t *testing.T, c *net.UnixConn) ([]byte, []*os.File) {
	t.Helper()
	var files []*os.File
	var frame []byte
	read := func(want int) {
		for part := make([]byte, want); len(part) > 0; {
			control := make([]byte, unix.CmsgSpace(4*253))
			n, controls, flags, _, err := c.ReadMsgUnix(part, control)
			require.NoError(t, err)
			require.NotZero(t, n, "the server has hung up")
			require.Zero(t, flags&unix.MSG_CTRUNC)
			frame, part = append(frame, part[:n]...), part[n:]
			messages, err := unix.ParseSocketControlMessage(control[:controls])
			require.NoError(t, err)
			for _, m := range messages {
				fds, err := unix.ParseUnixRights(&m)
				require.NoError(t, err)
				for _, fd := range fds {
					files = append(files, os.NewFile(uintptr(fd), "memory"))
				}
			}
		}
	}
	read(16)
	read(int(binary.BigEndian.Uint32(frame)))
	return frame, files
}

// sealedMemory creates memory as the page describes.
func sealedMemory(t *testing.T, content []byte) *os.File {
	t.Helper()
	fd, err := unix.MemfdCreate("page", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	require.NoError(t, err)
	f := os.NewFile(uintptr(fd), "page")
	t.Cleanup(func() { f.Close() })
	require.NoError(t, f.Truncate(int64(len(content))))
	_, err = f.WriteAt(content, 0)
	require.NoError(t, err)
	_, err = unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_FUTURE_WRITE)
	require.NoError(t, err)
	return f
}

// requireMemory maps memory as the page describes and compares it.
func requireMemory(t *testing.T, f *os.File, want []byte) {
	t.Helper()
	info, err := f.Stat()
	require.NoError(t, err)
	require.LessOrEqual(t, int64(len(want)), info.Size())
	seals, err := unix.FcntlInt(f.Fd(), unix.F_GET_SEALS, 0)
	require.NoError(t, err)
	require.Equal(t, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW, seals&(unix.F_SEAL_SHRINK|unix.F_SEAL_GROW))
	mapped, err := unix.Mmap(int(f.Fd()), 0, len(want), unix.PROT_READ, unix.MAP_SHARED)
	require.NoError(t, err)
	require.NoError(t, f.Close())
	require.Equal(t, want, append([]byte{}, mapped...))
	require.NoError(t, unix.Munmap(mapped))
}

// A client sends the frames of SMALLEST.md to an owner in another process; the answers and the memory equal the page.
func TestProtocolSmallestClient(t *testing.T) {
	fixture.HostOnly(t, "the page shares host memory")
	drivertest.Leaks(t)
	page, host := smallestPage(t), hostBytes(t)
	fixture.RequireFeature(t, message.FeaturePool)
	t.Setenv("SHARED_TENSOR_RING", "off") // the page assumes no rings
	_, socket := fixture.Owner(t)
	c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: socket, Net: "unix"})
	require.NoError(t, err)
	defer c.Close()
	require.NoError(t, c.SetDeadline(time.Now().Add(10*time.Second)))

	var mine, theirs *os.File
	sent := map[string]int{}
	for _, block := range page {
		sent[block.from]++
		switch block.from {
		case "memory":
			if mine == nil {
				mine = sealedMemory(t, block.encode(t, nil))
				break
			}
			require.NotNil(t, theirs, "memory that did not come")
			requireMemory(t, theirs, block.encode(t, nil))
			theirs = nil
		case "client":
			var rights []byte
			if block.files > 0 {
				rights = unix.UnixRights(int(mine.Fd()))
			}
			_, _, err := c.WriteMsgUnix(block.encode(t, host), rights, nil)
			require.NoError(t, err)
		case "server":
			got, files := receiveRaw(t, c)
			require.Nil(t, theirs, "memory that the page does not look at")
			block.requireMatch(t, host, got)
			require.Len(t, files, block.files)
			if len(files) > 0 {
				theirs = files[0]
			}
		}
	}
	require.Equal(t, map[string]int{"client": 7, "server": 6, "memory": 3}, sent)
	n, err := c.Read(make([]byte, 1))
	require.Zero(t, n)
	require.Error(t, err, "the goodbye of a client ends the connection")
}
