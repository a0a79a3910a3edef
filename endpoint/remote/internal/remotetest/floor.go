package remotetest

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
)

// Floor is a process that does the minimum of a gateway's work: raw TCP, and net/http with JSON. Measurements are
// ratios to it.
type Floor struct {
	*Process
	// TCP receives a direction ('<' for bytes from the floor, '>' for bytes to it) and a length of 8 bytes,
	// little-endian. For '>' it answers with one byte when it has received all. It sends from memory of that length,
	// like a model, and not from a small buffer that stays in a cache. HTTP answers POST /add {"id": …, "params": {"a":
	// …, "b": …}} with {"id": …, "result": a+b}.
	TCP, HTTP string
}

// StartFloor starts a floor on free ports.
func StartFloor(t testing.TB) *Floor {
	t.Helper()
	p, line := start(t, "floor")
	words := strings.Fields(line)
	if len(words) != 2 {
		t.Fatalf("the floor did not start; its log:\n%s", p.log)
	}
	return &Floor{p, words[0], words[1]}
}

func floorMain() error {
	raw, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	web, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	go serveRaw(raw)
	mux := http.NewServeMux()
	mux.HandleFunc("POST /add", addJSON)
	go func() { _ = http.Serve(web, mux) }()
	fmt.Println(raw.Addr(), web.Addr())
	ctx, stop := untilTerminated()
	defer stop()
	<-ctx.Done()
	return nil
}

func addJSON(w http.ResponseWriter, r *http.Request) {
	var in struct {
		ID     json.RawMessage `json:"id"`
		Params struct{ A, B int }
	}
	if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(map[string]any{"jsonrpc": "2.0", "id": in.ID, "result": in.Params.A + in.Params.B})
}

func serveRaw(l net.Listener) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer conn.Close()
			piece := make([]byte, 1<<20)
			var model []byte
			for transfer(conn, piece, &model) == nil {
			}
		}()
	}
}

func transfer(conn net.Conn, piece []byte, model *[]byte) error {
	var head [9]byte
	if _, err := io.ReadFull(conn, head[:]); err != nil {
		return err
	}
	left := int(binary.LittleEndian.Uint64(head[1:]))
	if head[0] == '<' {
		return send(conn, left, model)
	}
	for left > 0 {
		n, err := conn.Read(piece[:min(left, len(piece))])
		if err != nil {
			return err
		}
		left -= n
	}
	_, err := conn.Write([]byte{1})
	return err
}

// send sends n bytes of model, which it grows to that length.
func send(conn net.Conn, n int, model *[]byte) error {
	for len(*model) < n {
		*model = append(*model, byte(len(*model)))
	}
	for at := 0; at < n; at += 1 << 20 {
		if _, err := conn.Write((*model)[at:min(at+1<<20, n)]); err != nil {
			return err
		}
	}
	return nil
}

// Down receives n bytes from the floor over conn, with piece as its buffer.
func Down(conn net.Conn, n int, piece []byte) error {
	if _, err := conn.Write(binary.LittleEndian.AppendUint64([]byte{'<'}, uint64(n))); err != nil {
		return err
	}
	for n > 0 {
		read, err := conn.Read(piece[:min(n, len(piece))])
		if err != nil {
			return err
		}
		n -= read
	}
	return nil
}

// Up sends data to the floor over conn and waits until all of it has arrived.
func Up(conn net.Conn, data []byte) error {
	if _, err := conn.Write(binary.LittleEndian.AppendUint64([]byte{'>'}, uint64(len(data)))); err != nil {
		return err
	}
	for rest := data; len(rest) > 0; {
		n := min(len(rest), 1<<20)
		if _, err := conn.Write(rest[:n]); err != nil {
			return err
		}
		rest = rest[n:]
	}
	_, err := io.ReadFull(conn, make([]byte, 1))
	return err
}
