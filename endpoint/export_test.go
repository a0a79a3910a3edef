package endpoint

import (
	"os"
	"slices"
	"strings"
)

// withoutEnv is an environment variable with the features that this test binary, and those it starts, do without, such
// as "pool,keep". See .ci/common.sh.
const withoutEnv = "SHAREDTENSOR_TEST_WITHOUT"

func init() { without = strings.Split(os.Getenv(withoutEnv), ",") }

// Has reports whether the tests run with a feature.
func Has(feature string) bool { return !slices.Contains(without, feature) }

// HoldDigests keeps a server from computing digests until release is called.
func HoldDigests(s *Server) (release func()) {
	d := &s.digests
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.running {
		panic("digests are being computed")
	}
	d.running = true
	return func() { d.work.Go(d.run) }
}

// DropWhileComputing has the digests of a server's only version that has any computed when that has just gone. It
// returns what came of them. The server's digests are held.
func DropWhileComputing(s *Server) error {
	d := &s.digests
	d.mu.Lock()
	j := d.queue[0]
	d.queue, j.begun = nil, true
	d.mu.Unlock()
	for sd := range d.of {
		d.drop(sd)
	}
	j.compute()
	return j.err
}
