package jitcache_test

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/sharedtensor/sharedtensor/driver/cuda/jitcache"
)

func ExampleOpen() {
	dir, err := os.MkdirTemp("", "jit")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	cache, err := jitcache.Open(jitcache.Options{Dir: filepath.Join(dir, "cache")}) // nvrtc.Options.Cache, nvjitlink.Options.Cache
	if err != nil {
		fmt.Println(err)
		return
	}
	key := jitcache.NewKey("source", "options", "architecture", "version of the library")
	if err := cache.Put(key, []byte("code")); err != nil {
		fmt.Println(err)
		return
	}
	code, ok := cache.Get(key)
	fmt.Println(string(code), ok)
	// Output: code true
}
