// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"math"
	"path"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
)

// minKillGrace is how long a kubelet waits after SIGTERM, even if a hook used up the grace
// period.
const minKillGrace = 2 * time.Second

// end returns when the containers of the deleted pod end. A later deletion can only shorten
// it.
func (s *podState) end(limit time.Duration) time.Time {
	if end := terminationEnd(s.pod, limit); s.ends.IsZero() || end.Before(s.ends) {
		s.ends = end
	}
	return s.ends
}

// terminationEnd returns when the containers of a pod that is deleted have ended. A limit of
// zero means no limit.
func terminationEnd(pod *corev1.Pod, limit time.Duration) time.Time {
	grace := time.Duration(ptr.Deref(pod.DeletionGracePeriodSeconds, 0)) * time.Second
	took := terminationTime(pod, grace)
	if limit > 0 {
		took = min(took, limit)
	}
	// The deletion timestamp is the end of the grace period on the server's clock.
	return pod.DeletionTimestamp.Add(took - grace)
}

// terminationTime returns how long a kubelet takes to end the containers of a pod: each runs
// its pre-stop hook, then gets SIGTERM and, at the end of the grace period, SIGKILL.
func terminationTime(pod *corev1.Pod, grace time.Duration) time.Duration {
	var longest time.Duration
	for _, c := range slices.Concat(pod.Spec.Containers, sidecars(pod)) {
		took := min(hookTime(c.Lifecycle), grace)
		if ignoresTermination(c) {
			took += max(grace-took, minKillGrace)
		}
		longest = max(longest, took)
	}
	return longest
}

// sidecars returns the init containers that run as long as the pod.
func sidecars(pod *corev1.Pod) []corev1.Container {
	return slices.DeleteFunc(slices.Clone(pod.Spec.InitContainers), func(c corev1.Container) bool {
		return ptr.Deref(c.RestartPolicy, "") != corev1.ContainerRestartPolicyAlways
	})
}

// hookTime returns the duration of a pre-stop hook. Sleeps take their time; all other hooks
// succeed immediately, because there are no containers to run them in.
func hookTime(lifecycle *corev1.Lifecycle) time.Duration {
	switch {
	case lifecycle == nil || lifecycle.PreStop == nil:
	case lifecycle.PreStop.Sleep != nil:
		return time.Duration(lifecycle.PreStop.Sleep.Seconds) * time.Second
	case lifecycle.PreStop.Exec != nil:
		return sleepTime(lifecycle.PreStop.Exec.Command)
	}
	return 0
}

// ignoresTermination reports whether SIGTERM does not end the container: the first process of
// a container has no default handler, and sleep installs none. Everything else is assumed to
// end immediately, like the pause image.
func ignoresTermination(c corev1.Container) bool {
	return sleepTime(slices.Concat(c.Command, c.Args)) > 0
}

// sleepTime returns how long a command sleeps: "sleep 60", also as the only command of a
// shell. It returns 0 for other commands.
func sleepTime(command []string) time.Duration {
	if len(command) == 3 && command[1] == "-c" && slices.Contains([]string{"sh", "ash", "bash"}, path.Base(command[0])) {
		command = strings.Fields(command[2])
	}
	if len(command) != 2 || path.Base(command[0]) != "sleep" {
		return 0
	}
	if command[1] == "infinity" {
		return math.MaxInt64
	}
	// The unit is optional.
	for _, text := range []string{command[1], command[1] + "s"} {
		if d, err := time.ParseDuration(text); err == nil && d > 0 {
			return d
		}
	}
	return 0
}
