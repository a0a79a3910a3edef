// Package wheeltest downloads what tests need.
package wheeltest

import (
	"context"
	"os"
	"testing"
)

// Path returns the path that download returns. If the file cannot be downloaded, the test is skipped, or fails if the
// environment variable SHAREDTENSOR_REQUIRE_ONNX is set.
func Path(ctx context.Context, tb testing.TB, download func(context.Context) (string, error)) string {
	tb.Helper()
	path, err := download(ctx)
	if err == nil {
		return path
	}
	if os.Getenv("SHAREDTENSOR_REQUIRE_ONNX") != "" {
		tb.Fatalf("download: %v", err)
	}
	tb.Skipf("SKIPPED, NOT TESTED: it cannot be downloaded (SHAREDTENSOR_REQUIRE_ONNX=1 makes this a failure): %v", err)
	return ""
}
