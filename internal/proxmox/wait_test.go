// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"
	"golang.org/x/sync/errgroup"
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
	// A task that is still running at the first poll is noticed one response later.
	g.Expect(late/rounds).To(BeNumerically("<=", host.latency/2), "noticed late")
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

// After tasks that were slow for a while, such as beside a backup, the polls are on time
// again within a few tasks.
func TestWaitTaskRecovery(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	host, durations := newTaskHost(1300*time.Millisecond), proxmox.NewDurations()
	for range 20 {
		_, err := host.wait(t.Context(), durations)
		g.Expect(err).NotTo(HaveOccurred())
	}
	host.takes = 400 * time.Millisecond
	for range 8 {
		_, err := host.wait(t.Context(), durations)
		g.Expect(err).NotTo(HaveOccurred())
	}
	g.Expect(host.polls[len(host.polls)-1]-host.takes).To(BeNumerically("<", 100*time.Millisecond), "noticed late")
}

// Proxmox checks every second whether a VM has stopped, so a stop takes a little more
// than 0.6 s or 1.6 s, in no order.
func TestWaitTaskStop(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	stop := proxmox.UPID(strings.Replace(testUPID, "qmclone", "qmstop", 1))
	host, durations := newTaskHost(0), proxmox.NewDurations()
	for _, takes := range []time.Duration{1650, 1640, 1660, 1650, 610, 620, 1640, 600, 1650, 620} {
		host.takes = takes * time.Millisecond
		host.began, host.polls = host.clock.Now(), nil
		_, err := proxmox.WaitTask(t.Context(), host, stop, proxmox.WaitOptions{Durations: durations, Key: "pve1/local-lvm", Clock: host.clock})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(len(host.polls)).To(BeNumerically("<=", 2))
		g.Expect(host.polls[len(host.polls)-1]-host.takes).To(BeNumerically("<=", 100*time.Millisecond), "noticed late")
	}
}

// The time that a guest needs to shut down varies. Proxmox checks every second.
func TestWaitTaskShutdown(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	shutdown := proxmox.UPID(strings.Replace(testUPID, "qmclone", "qmshutdown", 1))
	host, durations := newTaskHost(0), proxmox.NewDurations()
	for _, takes := range []time.Duration{3650, 4640, 2660, 9650, 3610, 3620, 4640, 1600} {
		host.takes = takes * time.Millisecond
		host.began, host.polls = host.clock.Now(), nil
		_, err := proxmox.WaitTask(t.Context(), host, shutdown, proxmox.WaitOptions{Durations: durations, Key: "pve1/local-lvm", Clock: host.clock})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(len(host.polls)).To(BeNumerically("<=", host.takes/time.Second))
		g.Expect(host.polls[len(host.polls)-1]-host.takes).To(BeNumerically("<=", 100*time.Millisecond), "noticed late")
	}
}

// taskList is a Host whose tasks have ended. Its task list may not show that yet.
type taskList struct {
	proxmox.TaskClient
	stale        bool
	lists, reads atomic.Int64
}

func (l *taskList) Task(_ context.Context, task proxmox.UPID) (proxmox.TaskStatus, error) {
	l.reads.Add(1)
	return proxmox.TaskStatus{UPID: task, Exit: "OK"}, nil
}

func (l *taskList) RecentTasks(context.Context, string, string, time.Time) ([]proxmox.TaskStatus, error) {
	l.lists.Add(1)
	var rows []proxmox.TaskStatus
	for _, task := range []proxmox.UPID{testUPID, uploadUPID} {
		row := proxmox.TaskStatus{UPID: task, Running: l.stale}
		if !l.stale {
			row.Exit = "OK"
		}
		rows = append(rows, row)
	}
	return rows, nil
}

// uploadUPID is a task beside that of testUPID.
var uploadUPID = proxmox.UPID(strings.Replace(testUPID, "qmclone", "imgcopy", 1))

func TestWaitTaskShared(t *testing.T) {
	t.Parallel()
	for name, stale := range map[string]bool{"listed_as_ended": false, "stale_list": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				host, polls, durations := &taskList{stale: stale}, proxmox.NewTaskPolls(), proxmox.NewDurations()
				var waits errgroup.Group
				// Both waits must have begun before the first poll.
				for task, later := range map[proxmox.UPID]time.Duration{testUPID: 3 * time.Second, uploadUPID: 10 * time.Second} {
					waits.Go(func() error {
						_, err := proxmox.WaitTask(t.Context(), host, task, proxmox.WaitOptions{Durations: durations, Polls: polls, NotBefore: later})
						return err
					})
				}
				g := NewWithT(t)
				g.Expect(waits.Wait()).To(Succeed())
				if !stale {
					g.Expect(host.lists.Load()).To(Equal(int64(1)), "one list ends both waits")
					g.Expect(host.reads.Load()).To(BeZero())
				}
			})
		})
	}
}

// Tasks of a burst take longer. They do not delay the polls of the tasks after it.
func TestWaitTaskAfterBurst(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	durations := proxmox.NewDurations()
	durations.Observe("qmclone", "k", proxmox.Observation{Took: 400 * time.Millisecond})
	for range 10 {
		durations.Observe("qmclone", "k", proxmox.Observation{Took: 3 * time.Second, UpperBound: true})
	}
	g.Expect(durations.Expected("qmclone", "k")).To(Equal(400 * time.Millisecond))
	g.Expect(durations.Learned("qmclone", "k")).To(Equal(3 * time.Second))
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
		durations.Observe("qmclone", "pve1/local-lvm", proxmox.Observation{Took: 300 * time.Second})
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

func TestWaitTaskLostHost(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	host := newTaskHost(5 * time.Second)
	host.fail = func(int) error { return fmt.Errorf("reading the task: %w", proxmox.ErrHostUnreachable) }
	_, err := host.wait(t.Context(), nil)
	g.Expect(err).To(MatchError(proxmox.ErrHostUnreachable))
	g.Expect(host.clock.Since(host.began)).To(BeNumerically("~", 30*time.Second, 15*time.Second))
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
