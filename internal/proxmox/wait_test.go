// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"k8s.io/utils/clock"
	testclock "k8s.io/utils/clock/testing"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// leapClock advances by the duration of every new timer, so timers fire immediately.
type leapClock struct{ *testclock.FakeClock }

func newLeapClock() leapClock { return leapClock{testclock.NewFakeClock(time.Unix(1e9, 0))} }

func (c leapClock) NewTimer(d time.Duration) clock.Timer {
	timer := c.FakeClock.NewTimer(d)
	c.Step(d)
	return timer
}

// taskHost runs one task and records when it was polled.
type taskHost struct {
	proxmox.TaskClient
	clock leapClock
	began time.Time
	takes time.Duration
	// latency is the response time of a poll.
	latency time.Duration
	exit    string
	polls   []time.Duration
	// fail returns the error of the nth poll, or nil.
	fail func(n int) error
	// unflushed makes the first poll after the end return "unexpected status".
	unflushed bool
}

func (h *taskHost) Task(ctx context.Context, task proxmox.UPID) (proxmox.TaskStatus, error) {
	elapsed := h.clock.Since(h.began)
	defer h.clock.Step(h.latency)
	h.polls = append(h.polls, elapsed)
	if ctx.Err() != nil {
		return proxmox.TaskStatus{}, ctx.Err()
	}
	if h.fail != nil {
		if err := h.fail(len(h.polls)); err != nil {
			return proxmox.TaskStatus{}, err
		}
	}
	status := proxmox.TaskStatus{UPID: task, Running: elapsed < h.takes}
	if !status.Running {
		status.Exit = h.exit
		if h.unflushed {
			status.Exit, h.unflushed = "unexpected status", false
		}
	}
	return status, nil
}

func newTaskHost(takes time.Duration) *taskHost {
	c := newLeapClock()
	return &taskHost{clock: c, began: c.Now(), takes: takes, exit: "OK"}
}

func (h *taskHost) wait(ctx context.Context, durations *proxmox.Durations) (proxmox.TaskStatus, error) {
	h.began, h.polls = h.clock.Now(), nil
	return proxmox.WaitTask(ctx, h, testUPID, proxmox.WaitOptions{Durations: durations, Key: "pve1/local-lvm", Clock: h.clock})
}

func TestWaitTask(t *testing.T) {
	t.Parallel()
	for _, takes := range []time.Duration{100 * time.Millisecond, 700 * time.Millisecond, 4 * time.Second, time.Minute} {
		t.Run(takes.String(), func(t *testing.T) {
			t.Parallel()
			g := NewWithT(t)
			host, durations := newTaskHost(takes), proxmox.NewDurations()
			for range 60 {
				_, err := host.wait(t.Context(), durations)
				g.Expect(err).NotTo(HaveOccurred())
			}
			polls, late := 0, time.Duration(0)
			const rounds = 40
			for range rounds {
				_, err := host.wait(t.Context(), durations)
				g.Expect(err).NotTo(HaveOccurred())
				polls += len(host.polls)
				late += host.polls[len(host.polls)-1] - takes
			}
			blind := int(takes / (10 * time.Second)) // polls to notice an early failure
			g.Expect(polls).To(BeNumerically("<=", rounds*(1+blind)+rounds/4), "polls")
			g.Expect(late/rounds).To(BeNumerically("<=", max(takes/20, 20*time.Millisecond)), "noticed late")
		})
	}
}

// If a response takes about as long as the task itself, its latency must not count as
// the task's duration: each poll would be later than the one before.
func TestWaitTaskSlowResponses(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	host, durations := newTaskHost(150*time.Millisecond), proxmox.NewDurations()
	host.latency = 100 * time.Millisecond
	late := time.Duration(0)
	const rounds = 40
	for i := range 2 * rounds {
		_, err := host.wait(t.Context(), durations)
		g.Expect(err).NotTo(HaveOccurred())
		if i >= rounds {
			late += host.polls[len(host.polls)-1] - host.takes
		}
	}
	g.Expect(late/rounds).To(BeNumerically("<=", 20*time.Millisecond), "noticed late")
}

// The durations of tasks of one type vary.
func TestWaitTaskVaryingDurations(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	random := rand.New(rand.NewPCG(1, 1))
	host, durations := newTaskHost(0), proxmox.NewDurations()
	polls, late, total := 0, time.Duration(0), time.Duration(0)
	const rounds = 400
	for range rounds {
		host.takes = time.Second + time.Duration(random.Int64N(int64(200*time.Millisecond)))
		_, err := host.wait(t.Context(), durations)
		g.Expect(err).NotTo(HaveOccurred())
		polls += len(host.polls)
		late += host.polls[len(host.polls)-1] - host.takes
		total += host.takes
	}
	g.Expect(polls).To(BeNumerically("<=", rounds*2), "polls")
	g.Expect(late).To(BeNumerically("<=", total/10), "noticed late")
}

// A task that waited for a lock must not delay the polls of the next ones.
func TestWaitTaskOutlier(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	host, durations := newTaskHost(time.Second), proxmox.NewDurations()
	for range 20 {
		_, err := host.wait(t.Context(), durations)
		g.Expect(err).NotTo(HaveOccurred())
	}
	host.takes = 9 * time.Second
	_, err := host.wait(t.Context(), durations)
	g.Expect(err).NotTo(HaveOccurred())
	host.takes = time.Second
	var late []time.Duration
	for range 8 {
		_, err := host.wait(t.Context(), durations)
		g.Expect(err).NotTo(HaveOccurred())
		late = append(late, host.polls[len(host.polls)-1]-host.takes)
	}
	g.Expect(late[0]).To(BeNumerically("<", 4*time.Second))
	g.Expect(late[7]).To(BeNumerically("<", 100*time.Millisecond), "%v", late)
}

func TestWaitTaskKeys(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	durations := proxmox.NewDurations()
	slow := newTaskHost(20 * time.Second)
	for range 20 {
		_, err := slow.wait(t.Context(), durations)
		g.Expect(err).NotTo(HaveOccurred())
	}
	g.Expect(durations.Expected("qmclone", "pve1/local-lvm")).To(BeNumerically("~", 20*time.Second, 5*time.Second))
	g.Expect(durations.Expected("qmclone", "pve2/local-lvm")).To(BeNumerically("<", time.Second))
	g.Expect(durations.Expected("qmstart", "pve1/local-lvm")).To(BeNumerically("<", 2*time.Second))
}

func TestWaitTaskEmptyUPID(t *testing.T) {
	t.Parallel()
	status, err := proxmox.WaitTask(t.Context(), &taskHost{}, "", proxmox.WaitOptions{})
	if err != nil || !status.Succeeded() {
		t.Errorf("found %+v, %v", status, err)
	}
}

// A task that fails early is noticed although it was expected to take minutes.
func TestWaitTaskEarlyFailure(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	durations := proxmox.NewDurations()
	for range 30 {
		durations.Observe("qmclone", "pve1/local-lvm", 300*time.Second, 300*time.Second)
	}
	host := newTaskHost(time.Second)
	host.exit = "clone failed: No space left on device"
	status, err := host.wait(t.Context(), durations)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(status.Err()).To(MatchError(proxmox.ErrStorageFull))
	g.Expect(host.polls).To(HaveLen(1))
	g.Expect(host.polls[0]).To(BeNumerically("<=", 10*time.Second))
}

func TestWaitTaskUnreachableHost(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	host := newTaskHost(5 * time.Second)
	transient := []error{proxmox.ErrHostUnreachable, proxmox.ErrUnreachable, proxmox.ErrUnknownOutcome}
	host.fail = func(n int) error {
		if n <= len(transient) {
			return fmt.Errorf("reading the task: %w", transient[n-1])
		}
		return nil
	}
	status, err := host.wait(t.Context(), nil)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(status.Succeeded()).To(BeTrue())
}

func TestWaitTaskNotFound(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	host := newTaskHost(5 * time.Second)
	host.fail = func(int) error { return proxmox.ErrNotFound }
	_, err := host.wait(t.Context(), nil)
	g.Expect(err).To(MatchError(proxmox.ErrNotFound))
	g.Expect(host.polls).To(HaveLen(1))
}

func TestWaitTaskCanceled(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	host := newTaskHost(time.Hour)
	ctx, cancel := context.WithCancel(t.Context())
	host.fail = func(n int) error {
		if n == 3 {
			cancel()
		}
		return proxmox.ErrHostUnreachable
	}
	_, err := host.wait(ctx, nil)
	g.Expect(err).To(And(MatchError(context.Canceled), MatchError(proxmox.ErrHostUnreachable)))
	g.Expect(len(host.polls)).To(BeNumerically("<=", 4))
}

// Proxmox returns "unexpected status" between the worker's end and its last log line.
func TestWaitTaskUnexpectedStatus(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	host := newTaskHost(time.Second)
	host.unflushed = true
	status, err := host.wait(t.Context(), nil)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(status.Exit).To(Equal("OK"))

	host.exit = "unexpected status"
	status, err = host.wait(t.Context(), nil)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(status.Err()).To(MatchError(proxmox.ErrUnknownOutcome))
}
