// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/test/harness"
)

const (
	systemNodeName = "system"
	// podNetwork has the addresses of the controller's pods. It is not loopback, because the
	// API server's proxy refuses loopback addresses.
	podNetwork = "10.244.0.0/24"

	syncInterval  = 250 * time.Millisecond
	leaseInterval = 10 * time.Second
	readyTimeout  = 5 * time.Minute
)

// systemNode is the Node for Karpenter itself. It runs the controller's binary as the process
// of each pod of its Deployment. Other pods only get a status.
type systemNode struct {
	plane   *harness.Plane
	dir     string
	binary  string
	kubelet *kubeletServer
	cancel  context.CancelFunc
	done    chan struct{}

	mu   sync.Mutex
	pods map[types.UID]*systemPod
	last int // last octet of the last pod's address
}

func startSystemNode(ctx context.Context, plane *harness.Plane, dir, binary string) (*systemNode, error) {
	n := &systemNode{plane: plane, dir: dir, binary: binary, pods: map[types.UID]*systemPod{}, last: 9, done: make(chan struct{})}
	var err error
	if n.kubelet, err = startKubeletServer(n); err != nil {
		return nil, err
	}
	capacity := corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("8"), corev1.ResourceMemory: resource.MustParse("16Gi"), corev1.ResourcePods: resource.MustParse("50"),
	}
	now := metav1.Now()
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: systemNodeName, Labels: map[string]string{corev1.LabelHostname: systemNodeName, corev1.LabelOSStable: "linux"}},
		Spec:       corev1.NodeSpec{Taints: []corev1.Taint{{Key: "CriticalAddonsOnly", Effect: corev1.TaintEffectNoSchedule}}},
	}
	if err := plane.Client.Create(ctx, node); err != nil {
		return nil, fmt.Errorf("creating system node: %w", err)
	}
	node.Status = corev1.NodeStatus{
		Capacity: capacity, Allocatable: capacity,
		Addresses:       []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "127.0.0.1"}},
		Conditions:      []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady", LastHeartbeatTime: now, LastTransitionTime: now}},
		DaemonEndpoints: corev1.NodeDaemonEndpoints{KubeletEndpoint: corev1.DaemonEndpoint{Port: n.kubelet.port}},
	}
	if err := plane.Client.Status().Update(ctx, node); err != nil {
		return nil, fmt.Errorf("updating status of system node: %w", err)
	}
	ctx, n.cancel = context.WithCancel(context.WithoutCancel(ctx))
	go n.loop(ctx)
	return n, nil
}

// loop renews the Lease of the Node and syncs its pods until the context ends.
func (n *systemNode) loop(ctx context.Context) {
	defer close(n.done)
	var renewed time.Time
	for {
		if time.Since(renewed) > leaseInterval {
			if err := n.renewLease(ctx); err != nil && ctx.Err() == nil {
				logf("renewing lease: %v", err)
			}
			renewed = time.Now()
		}
		if err := n.sync(ctx); err != nil && ctx.Err() == nil {
			logf("syncing pods: %v", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(syncInterval):
		}
	}
}

func (n *systemNode) renewLease(ctx context.Context) error {
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: corev1.NamespaceNodeLease, Name: systemNodeName}}
	err := n.plane.Client.Get(ctx, client.ObjectKeyFromObject(lease), lease)
	if client.IgnoreNotFound(err) != nil {
		return err
	}
	lease.Spec = coordinationv1.LeaseSpec{HolderIdentity: new(systemNodeName), LeaseDurationSeconds: new(int32(40)), RenewTime: new(metav1.NowMicro())}
	if err != nil {
		return n.plane.Client.Create(ctx, lease)
	}
	return n.plane.Client.Update(ctx, lease)
}

// sync starts and ends the processes of the Node's pods, and reports their status.
func (n *systemNode) sync(ctx context.Context) error {
	list := &corev1.PodList{}
	if err := n.plane.Client.List(ctx, list, client.MatchingFields{"spec.nodeName": systemNodeName}); err != nil {
		return err
	}
	var errs error
	listed := map[types.UID]bool{}
	for i := range list.Items {
		listed[list.Items[i].UID] = true
		errs = errors.Join(errs, n.syncPod(ctx, &list.Items[i]))
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	for uid, pod := range n.pods {
		if !listed[uid] {
			pod.cancel() // a pod that was deleted without a grace period still runs
			delete(n.pods, uid)
		}
	}
	return errs
}

func (n *systemNode) syncPod(ctx context.Context, pod *corev1.Pod) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	state := n.pods[pod.UID]
	if !pod.DeletionTimestamp.IsZero() {
		if state != nil {
			state.cancel()
			select {
			case <-state.done:
			default:
				return nil // it is deleted when its process has ended
			}
		}
		return client.IgnoreNotFound(n.plane.Client.Delete(ctx, pod, client.GracePeriodSeconds(0), client.Preconditions{UID: &pod.UID}))
	}
	if state == nil {
		n.last++
		var err error
		if state, err = n.startPod(ctx, pod, fmt.Sprintf("10.244.0.%d", n.last)); err != nil {
			return err
		}
		n.pods[pod.UID] = state
	}
	status, changed := state.status(pod)
	if !changed {
		return nil
	}
	pod.Status = status
	if err := n.plane.Client.Status().Update(ctx, pod); err != nil {
		return client.IgnoreNotFound(err)
	}
	state.reported(status)
	return nil
}

// find returns the controller's pod with the given name.
func (n *systemNode) find(name string) *systemPod {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, pod := range n.pods {
		if pod.controller != nil && pod.name == name {
			return pod
		}
	}
	return nil
}

// waitForController waits until the controller holds its Lease.
func (n *systemNode) waitForController(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	lease := &coordinationv1.Lease{}
	for {
		err := n.plane.Client.Get(ctx, client.ObjectKey{Namespace: metav1.NamespaceSystem, Name: leaseName}, lease)
		if err == nil && ptr.Deref(lease.Spec.HolderIdentity, "") != "" {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting for the controller to hold Lease %s: %w", leaseName, errors.Join(ctx.Err(), err))
		case <-time.After(syncInterval):
		}
	}
}

// serveMetrics forwards port 8080 of each controller's pod to its metrics.
func (n *systemNode) serveMetrics(ctx context.Context) (stop func(), err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	var forwards []*harness.Forward
	stop = func() {
		for _, f := range forwards {
			f.Close()
		}
	}
	for _, pod := range n.pods {
		if pod.controller == nil {
			continue
		}
		target, err := url.Parse(pod.controller.MetricsURL())
		if err != nil {
			return stop, fmt.Errorf("parsing URL of metrics: %w", err)
		}
		f, err := harness.StartForward(ctx, net.JoinHostPort(pod.address, "8080"), target.Host)
		if err != nil {
			stop()
			return nil, err
		}
		forwards = append(forwards, f)
	}
	return stop, nil
}

// close ends the processes of all pods.
func (n *systemNode) close() {
	n.cancel()
	<-n.done
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, pod := range n.pods {
		<-pod.done // its context has ended, too
	}
	n.kubelet.close()
}
