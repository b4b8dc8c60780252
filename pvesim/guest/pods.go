// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"context"
	"encoding/json"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/utils/ptr"
)

// podRetry is the delay after a failed call.
const podRetry = time.Second

// never is the delay if no pod is due.
const never = time.Hour

// podLoop syncs the pods of one Node. It is used only by the kubelet's goroutine and
// needs no locking.
type podLoop struct {
	*kubelet
	watch  watch.Interface
	relist time.Time
	known  map[types.UID]*podState
}

// podState is a pod with the time of its next sync.
type podState struct {
	pod *corev1.Pod
	due time.Time // zero if no sync is due
	// ends is when the containers of a deleted pod end; zero if it is not deleted.
	ends time.Time
}

// events returns the channel of the watch, or nil, which blocks, without a watch.
func (l *podLoop) events() <-chan watch.Event {
	if l.watch == nil {
		return nil
	}
	return l.watch.ResultChan()
}

// nextDue returns the time until the next sync is due.
func (l *podLoop) nextDue() time.Duration {
	next := time.Now().Add(never)
	if l.watch == nil {
		next = l.relist
	}
	for _, state := range l.known {
		if !state.due.IsZero() && state.due.Before(next) {
			next = state.due
		}
	}
	return max(0, time.Until(next))
}

// work lists the pods if the watch has ended, and syncs the pods that are due.
func (l *podLoop) work(ctx context.Context) {
	if l.watch == nil && !time.Now().Before(l.relist) {
		l.start(ctx)
	}
	for _, state := range l.known {
		if !state.due.IsZero() && !time.Now().Before(state.due) {
			l.sync(ctx, state)
		}
	}
}

// start lists the pods and watches them from that resource version.
func (l *podLoop) start(ctx context.Context) {
	selector := fields.OneTermEqualSelector("spec.nodeName", l.settings.nodeName).String()
	var list *corev1.PodList
	err := l.call(ctx, func(ctx context.Context) (err error) {
		list, err = l.core.Pods(corev1.NamespaceAll).List(ctx, metav1.ListOptions{FieldSelector: selector, ResourceVersion: "0"})
		return err
	})
	if err == nil {
		l.watch, err = l.core.Pods(corev1.NamespaceAll).Watch(ctx, metav1.ListOptions{
			FieldSelector: selector, ResourceVersion: list.ResourceVersion, AllowWatchBookmarks: true,
		})
	}
	if err != nil {
		l.logError(ctx, "failed to watch pods", err)
		l.watch, l.relist = nil, time.Now().Add(podRetry)
		return
	}
	listed := make(map[types.UID]bool, len(list.Items))
	for i := range list.Items {
		listed[list.Items[i].UID] = true
		l.see(&list.Items[i])
	}
	for uid := range l.known {
		if !listed[uid] {
			delete(l.known, uid)
		}
	}
}

func (l *podLoop) stop() {
	if l.watch != nil {
		l.watch.Stop()
	}
}

// observe handles one event. If the watch ends or returns an error, for example because
// its resource version expired, the pods are listed again.
func (l *podLoop) observe(ctx context.Context, event watch.Event, ok bool) {
	pod, isPod := event.Object.(*corev1.Pod)
	switch {
	case !ok || event.Type == watch.Error:
		l.stop()
		l.watch, l.relist = nil, time.Now().Add(podRetry/10)
	case event.Type == watch.Deleted && isPod:
		delete(l.known, pod.UID)
	case isPod && event.Type != watch.Bookmark:
		l.sync(ctx, l.see(pod))
	}
}

// see stores the latest version of a pod.
func (l *podLoop) see(pod *corev1.Pod) *podState {
	state, ok := l.known[pod.UID]
	if !ok {
		state = &podState{}
		l.known[pod.UID] = state
	}
	state.pod = pod
	if state.due.IsZero() {
		state.due = time.Now()
	}
	return state
}

// sync compares a pod with its desired state and performs the next step.
func (l *podLoop) sync(ctx context.Context, state *podState) {
	pod := state.pod
	if pod.DeletionTimestamp != nil {
		l.terminate(ctx, state)
		return
	}
	state.due = time.Time{}
	if pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
		return
	}
	if status, changed := l.podStatus(pod); changed {
		if err := l.patchStatus(ctx, pod, status); err != nil {
			state.due = time.Now().Add(podRetry)
			l.logError(ctx, "failed to update status for pod "+pod.Namespace+"/"+pod.Name, err)
		}
	}
}

// terminate permanently deletes a pod after its containers have ended.
func (l *podLoop) terminate(ctx context.Context, state *podState) {
	pod := state.pod
	if end := state.end(l.runtime.options.PodGraceLimit); pod.Status.Phase == corev1.PodRunning && time.Now().Before(end) {
		state.due = end
		return
	}
	err := l.call(ctx, func(ctx context.Context) error {
		return l.core.Pods(pod.Namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{
			GracePeriodSeconds: ptr.To[int64](0),
			Preconditions:      &metav1.Preconditions{UID: &pod.UID},
		})
	})
	if err == nil || apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		// The pod is deleted, or has a finalizer of another controller.
		state.due = time.Time{}
		return
	}
	state.due = time.Now().Add(podRetry)
	l.logError(ctx, "failed to delete pod "+pod.Namespace+"/"+pod.Name, err)
}

// terminateAll marks all pods as terminated by the shutdown of their Node.
func (l *podLoop) terminateAll(ctx context.Context) {
	for _, state := range l.known {
		if phase := state.pod.Status.Phase; phase == corev1.PodSucceeded || phase == corev1.PodFailed {
			continue
		}
		status := shutdownStatus(state.pod)
		if err := l.patchStatus(ctx, state.pod, status); err != nil {
			l.logError(ctx, "failed to update status for pod "+state.pod.Namespace+"/"+state.pod.Name, err)
		}
	}
}

func (l *podLoop) patchStatus(ctx context.Context, pod *corev1.Pod, status corev1.PodStatus) error {
	// The UID makes the patch fail if another pod now has this name.
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": pod.UID}, "status": status})
	if err != nil {
		return err
	}
	err = l.call(ctx, func(ctx context.Context) error {
		_, err := l.core.Pods(pod.Namespace).Patch(ctx, pod.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
		return err
	})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil // the watch delivers the result
	}
	return err
}
