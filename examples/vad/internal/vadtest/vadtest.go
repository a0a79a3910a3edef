// Package vadtest locates the model, the clip and the expected values for the tests of examples/vad. They are not part
// of the repository.
package vadtest

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
)

// File returns the path of a test file: in the folder SHAREDTENSOR_TESTDATA, or in shared/data beside the folder of the
// module. If it is missing, the test is skipped.
func File(t testing.TB, name string) string {
	t.Helper()
	dir := os.Getenv("SHAREDTENSOR_TESTDATA")
	if dir == "" {
		dir = filepath.Join(filepath.Dir(moduleRoot(t)), "shared", "data")
	}
	path := filepath.Join(dir, name)
	if _, err := os.Stat(path); err != nil {
		t.Skipf("no test data: %v (set SHAREDTENSOR_TESTDATA to the folder that has it)", err)
	}
	return path
}

// Expected returns the network's probabilities for speech.wav, one for every 512 samples, computed in float64.
func Expected(t testing.TB) []float64 {
	t.Helper()
	data, err := os.ReadFile(File(t, "speech.json"))
	if err != nil {
		t.Fatal(err)
	}
	var want []float64
	if err := json.Unmarshal(data, &want); err != nil {
		t.Fatalf("speech.json: %v", err)
	}
	return want
}

// moduleRoot returns the folder of go.mod at or above the working directory, which is the package under test.
func moduleRoot(t testing.TB) string {
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			t.Fatal("no go.mod above the test")
		}
		dir = parent
	}
}
