// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

const version = `{"version":"8.4.21","release":"8.4","repoid":"2606ac85"}`

func TestFailoverIsStickyToTheURLThatWorks(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	down, up := newFakeHost(t, always(data(version))), newFakeHost(t, always(data(version)))
	c := newClient(t, config(down, up), proxmox.Options{})
	down.server.Close()
	for range 3 {
		found, err := c.Version(testContext(t))
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(found).To(Equal(proxmox.Version{Release: "8.4", Full: "8.4.21"}))
	}
	g.Expect(up.requests()).To(HaveLen(3))

	// The one that worked goes down: an error, not a hang on the first.
	up.server.Close()
	_, err := c.Version(testContext(t))
	g.Expect(err).To(MatchError(proxmox.ErrUnreachable))
	g.Expect(err.Error()).To(And(ContainSubstring(down.server.URL), ContainSubstring(up.server.URL)))
}

func TestAWriteMovesToTheNextURLOnlyWhenNothingWasSent(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	down, up := newFakeHost(t, always(data(`null`))), newFakeHost(t, always(data(`"`+testUPID+`"`)))
	c := newClient(t, config(down, up), proxmox.Options{})
	down.server.Close()
	_, err := c.StartVM(testContext(t), "pve1", 200)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(up.requests()).To(HaveLen(1))
}

func TestAWriteOfUnknownOutcomeIsNeverRepeated(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	drops, up := newFakeHost(t, always(reply{drop: true})), newFakeHost(t, always(data(`"`+testUPID+`"`)))
	c := newClient(t, config(drops, up), proxmox.Options{})
	ctx := testContext(t)

	_, err := c.StartVM(ctx, "pve1", 200)
	g.Expect(err).To(MatchError(proxmox.ErrUnknownOutcome))
	g.Expect(c.UpdateVM(ctx, "pve1", 200, proxmox.ConfigChange{Delete: []string{"ide2"}})).To(MatchError(proxmox.ErrUnknownOutcome))
	_, err = c.DestroyVM(ctx, "pve1", 200)
	g.Expect(err).To(MatchError(proxmox.ErrUnknownOutcome))
	_, err = c.UploadISO(ctx, "pve1", "local", "a.iso", []byte("iso"))
	g.Expect(err).To(MatchError(proxmox.ErrUnknownOutcome))

	g.Expect(drops.requests()).To(HaveLen(4))
	g.Expect(up.requests()).To(BeEmpty())
}

func TestAReadThatBrokeOffIsTriedElsewhere(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	drops, up := newFakeHost(t, always(reply{drop: true})), newFakeHost(t, always(data(version)))
	c := newClient(t, config(drops, up), proxmox.Options{})
	_, err := c.Version(testContext(t))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(up.requests()).To(HaveLen(1))
}

func TestTimeouts(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	slow := newFakeHost(t, always(reply{status: 200, body: `{"data":null}`, wait: time.Minute}))
	c := newClient(t, config(slow), proxmox.Options{ResponseTimeout: 50 * time.Millisecond})
	_, err := c.Version(testContext(t))
	g.Expect(err).To(MatchError(proxmox.ErrUnreachable))
	_, err = c.StopVM(testContext(t), "pve1", 200)
	g.Expect(err).To(MatchError(proxmox.ErrUnknownOutcome))
}

func TestTheCallersEndIsNotTheHostsFault(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	var calls atomic.Int32
	answer := func(request) reply {
		calls.Add(1)
		return reply{status: 200, body: `{"data":null}`, wait: time.Minute}
	}
	c := newClient(t, config(newFakeHost(t, answer), newFakeHost(t, answer)), proxmox.Options{})
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err := c.Version(ctx)
	g.Expect(err).To(MatchError(context.DeadlineExceeded))
	g.Expect(calls.Load()).To(BeEquivalentTo(1), "the other URL is not asked for a caller who left")

	ctx, cancel = context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err = c.StartVM(ctx, "pve1", 200)
	g.Expect(err).To(And(MatchError(context.DeadlineExceeded), MatchError(proxmox.ErrUnknownOutcome)))

	cancel()
	_, err = c.StartVM(ctx, "pve1", 200)
	g.Expect(err).To(MatchError(proxmox.ErrUnreachable), "nothing was sent")
	g.Expect(calls.Load()).To(BeEquivalentTo(2))
}
