package main

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestMeterInPlainLines(t *testing.T) {
	var b bytes.Buffer
	now := time.Unix(1000, 0)
	m := newMeter(&b, "loading", "loaded", "llm\n")
	m.now = func() time.Time { return now }
	m.update(0, 4<<30)
	for i := range 40 { // ten a second
		now = now.Add(100 * time.Millisecond)
		m.update(int64(i+1)*100<<20, 4<<30)
	}
	now = now.Add(500 * time.Millisecond)
	m.update(4<<30, 4<<30)
	m.end(nil)
	lines := strings.Split(strings.TrimSuffix(b.String(), "\n"), "\n")
	require.Len(t, lines, 5, b.String())
	require.Equal(t, `loading llm\n: 1000 MiB of 4.0 GiB, 24%, 1.0 GB/s, 3.00s left`, lines[0])
	require.Equal(t, `loaded llm\n: 4.0 GiB in 4.50s, 954 MB/s`, lines[4])
}

func TestMeterSaysNothingOfFailures(t *testing.T) {
	var b bytes.Buffer
	m := newMeter(&b, "loading", "loaded", "llm")
	m.end(nil)
	m.update(0, 10)
	m.end(errors.New("no"))
	m.close()
	require.Empty(t, b.String())
}

func TestMeterOfNothing(t *testing.T) {
	var b bytes.Buffer
	m := newMeter(&b, "loading", "loaded", "empty")
	m.update(0, 0)
	m.end(nil)
	require.Regexp(t, `^loaded empty: 0 B in `, b.String())
}

func TestMeterBar(t *testing.T) {
	var b bytes.Buffer
	m := newMeter(&b, "loading", "loaded", "llm")
	m.terminal = true
	m.update(0, 1000)
	require.Contains(t, b.String(), "loading llm")
	m.update(1000, 1000)
	m.end(nil)
	require.Regexp(t, `loaded llm: 1000 B in .*\n$`, b.String())
	b.Reset()
	m = newMeter(&b, "loading", "loaded", "llm")
	m.terminal = true
	m.update(0, 1000)
	m.update(10, 1000)
	m.end(errors.New("no"))
	require.NotContains(t, b.String(), "\n", "the error has the line for itself")
}
