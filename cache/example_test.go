package cache_test

import (
	"context"
	"fmt"
	"log"

	"github.com/sharedtensor/sharedtensor/cache"
)

// Expensive values are built once for all concurrent callers and kept within a budget.
func Example() {
	ctx := context.Background()
	models := cache.New(cache.Options[string]{
		Bytes:   10,
		Cost:    func(_ cache.Key, v string) int64 { return int64(len(v)) },
		OnEvict: func(k cache.Key, _ string) { fmt.Println("dropped", k.ID) },
	})
	load := func(id string) {
		ref, err := models.Get(ctx, cache.Key{Group: "models", ID: id}, func(context.Context) (string, error) {
			fmt.Println("made", id)
			return "weights", nil
		})
		if err != nil {
			log.Fatal(err)
		}
		defer ref.Close() // until then the value is not dropped
		fmt.Println("use", ref.Key().ID, ref.Value())
	}
	load("a")
	load("a")
	load("b")
	if err := models.Close(ctx); err != nil {
		log.Fatal(err)
	}
	// Which comes first, the eviction of one value or the use of the next, is open.
	//
	// Unordered output:
	// made a
	// use a weights
	// use a weights
	// made b
	// dropped a
	// use b weights
	// dropped b
}
