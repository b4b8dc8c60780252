// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package keyed_test

import (
	"context"
	"errors"
	"testing"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/keyed"
)

func TestSemaphore(t *testing.T) {
	t.Parallel()
	s := keyed.NewSemaphore[string](2)
	acquire := func(ctx context.Context, key string) func() {
		t.Helper()
		release, err := s.Acquire(ctx, key)
		if err != nil {
			t.Fatal(err)
		}
		return release
	}
	release := acquire(t.Context(), "a")
	acquire(t.Context(), "a")
	acquire(t.Context(), "b")

	cause := errors.New("test cause")
	ended, cancel := context.WithCancelCause(t.Context())
	cancel(cause)
	if _, err := s.Acquire(ended, "a"); !errors.Is(err, cause) {
		t.Errorf("a third acquisition returned %v, want the cause of the context's end", err)
	}
	if _, ok := s.TryAcquire("a"); ok {
		t.Error("a third acquisition succeeded")
	}
	release()
	if _, ok := s.TryAcquire("a"); !ok {
		t.Error("an acquisition after a release failed")
	}
}
