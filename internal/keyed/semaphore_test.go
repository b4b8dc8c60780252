// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package keyed_test

import (
	"context"
	"errors"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/keyed"
)

func TestSemaphore(t *testing.T) {
	t.Parallel()
	g, s := NewWithT(t), keyed.NewSemaphore[string](2)
	release, err := s.Acquire(t.Context(), "a")
	g.Expect(err).NotTo(HaveOccurred())
	for _, key := range []string{"a", "b"} {
		g.Expect(s.Acquire(t.Context(), key)).Error().NotTo(HaveOccurred())
	}

	cause := errors.New("test cause")
	ended, cancel := context.WithCancelCause(t.Context())
	cancel(cause)
	g.Expect(s.Acquire(ended, "a")).Error().To(MatchError(cause))
	_, ok := s.TryAcquire("a")
	g.Expect(ok).To(BeFalse(), "a third acquisition")
	release()
	_, ok = s.TryAcquire("a")
	g.Expect(ok).To(BeTrue(), "after a release")
}
