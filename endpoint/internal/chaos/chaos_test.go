//go:build unix

package chaos

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver/drivertest"
	"github.com/sharedtensor/sharedtensor/driver/host"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// needsHost skips the test if the system cannot share host memory.
func needsHost(t *testing.T) {
	t.Helper()
	dev, err := host.Open()
	drivertest.Needs(t, "memfd", !errors.Is(err, errors.ErrUnsupported), fmt.Sprint("there is no host memory to share: ", err))
	require.NoError(t, err)
	require.NoError(t, dev.Close())
}

// A short run of the program finds nothing, with and without a keeper.
func TestChaosShortRun(t *testing.T) {
	needsHost(t)
	for _, keep := range []string{"-keep=false", "-keep"} {
		t.Run(keep, func(t *testing.T) {
			t.Parallel()
			var out bytes.Buffer
			status := run(context.Background(), []string{"-seed", "7", "-duration", "6s", "-clients", "3", "-workers", "2", "-quiet", "3s", keep}, &out)
			require.Zero(t, status, "%s", out.String())
			require.Contains(t, out.String(), "chaos: ok")
			require.Contains(t, out.String(), "quiet 2 times")
		})
	}
}

func TestInvalidFlags(t *testing.T) {
	for _, args := range [][]string{{"x"}, {"-clients", "0"}, {"-workers", "-1"}, {"-duration", "-1s"}, {"-nonsense"}} {
		require.Equal(t, 2, run(context.Background(), args, new(bytes.Buffer)), args)
	}
}

// checkModel finds a single wrong byte in each tensor.
func TestCheckModelFindsWrongByte(t *testing.T) {
	needsHost(t)
	dev, err := host.Open()
	require.NoError(t, err)
	defer dev.Close()
	for salt := range uint64(20) {
		sd, err := makeModel(dev, salt)
		require.NoError(t, err)
		got, err := checkModel(sd)
		require.NoError(t, err)
		require.Equal(t, salt, got)
		for name, x := range sd.All() {
			if strings.HasSuffix(name, "T") || x.Bytes() == 0 {
				continue
			}
			data, err := tensor.RawData(x)
			require.NoError(t, err)
			at := mix(salt) % uint64(len(data))
			data[at]++
			_, err = checkModel(sd)
			require.ErrorContains(t, err, "WRONG BYTE")
			data[at]--
		}
		require.NoError(t, sd.Close())
	}
}

// check finds a value that was prepared from another version, and one that was closed while it is used.
func TestCheckPreparedFindsWrongValue(t *testing.T) {
	needsHost(t)
	dev, err := host.Open()
	require.NoError(t, err)
	defer dev.Close()
	sd, err := makeModel(dev, 1)
	require.NoError(t, err)
	defer sd.Close()
	c := &client{}
	p := &prepared{ModelVersion: endpoint.ModelVersion{Version: 1, Server: "s", StateDict: sd}, salt: 1}
	require.NoError(t, p.check(c, "m"))
	require.ErrorContains(t, (&prepared{ModelVersion: p.ModelVersion, salt: 2}).check(c, "m"), "was prepared from")
	require.NoError(t, p.Close())
	require.ErrorContains(t, p.check(c, "m"), "closed while it is used")
	require.Error(t, p.Close())
}

func TestSaltsFindConflict(t *testing.T) {
	var s salts
	require.NoError(t, s.note("a", "m", 1, 5))
	require.NoError(t, s.note("a", "m", 1, 5))
	require.NoError(t, s.note("b", "m", 1, 6))
	require.ErrorIs(t, s.note("a", "m", 1, 6), errFound)
	require.Len(t, s.take(), 2)

	r := newRunner(plan{}, new(bytes.Buffer))
	r.onReport(&process{}, report{Salts: map[string]uint64{"a m 1": 5}})
	require.NoError(t, r.found(nil))
	r.onReport(&process{}, report{Salts: map[string]uint64{"a m 1": 6}})
	require.ErrorContains(t, r.found(nil), "elsewhere")
}

func TestCountsFindLeak(t *testing.T) {
	needsHost(t)
	base := count()
	f, err := os.Open(os.DevNull)
	require.NoError(t, err)
	require.ErrorContains(t, awaitCounts(base, 100*time.Millisecond), os.DevNull)
	require.NoError(t, f.Close())
	require.NoError(t, awaitCounts(base, 5*time.Second))
	stop := make(chan struct{})
	go func() { <-stop }()
	require.ErrorContains(t, awaitCounts(base, 100*time.Millisecond), "TestCountsFindLeak")
	close(stop)
}
