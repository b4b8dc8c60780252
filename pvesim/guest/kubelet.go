// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/version"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	coreclient "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/utils/ptr"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

const (
	// callTimeout is the timeout of a call to the API server.
	callTimeout = 10 * time.Second
	// statusInterval is how often an unchanged Node status is reported.
	statusInterval = 5 * time.Minute
	leaseSeconds   = 40
)

// kubelet is one run of a guest's kubelet. Like the sync loop of a real kubelet, one
// goroutine does all the work; only the watch has its own.
type kubelet struct {
	*guest
	settings kubeletSettings
	image    string
	core     coreclient.CoreV1Interface
	leases   coordinationclient.LeaseInterface

	version      string
	startedAt    metav1.Time
	ready        corev1.ConditionStatus
	readySince   metav1.Time
	lastReported time.Time
	lease        *coordinationv1.Lease
	nodeGone     bool
	pods         podLoop
}

// superviseKubelet keeps the kubelet running, as systemd does.
func (g *guest) superviseKubelet(ctx context.Context, system system) {
	for {
		err := g.runKubelet(ctx, system)
		if err == nil || ctx.Err() != nil {
			return
		}
		g.console.printf("kubelet: %v", err)
		if !pause(ctx, g.shutdown, g.runtime.options.RestartDelay) {
			return
		}
	}
}

// runKubelet runs the kubelet until it fails. It returns nil if the guest is shut down.
func (g *guest) runKubelet(ctx context.Context, system system) error {
	settings, err := g.nodeSettings(system)
	if err != nil {
		return err
	}
	if len(g.addresses) == 0 {
		return errors.New("failed to run kubelet: network is unreachable")
	}
	starting, cancel := untilShutdown(ctx, g.shutdown)
	defer cancel()
	access, err := g.identity(starting, settings)
	if err != nil {
		return ignoreCanceled(starting, err)
	}
	config, httpClient, err := access.client(ctx)
	if err != nil {
		return err
	}
	defer httpClient.CloseIdleConnections()
	core, err := coreclient.NewForConfigAndClient(config, httpClient)
	if err != nil {
		return fmt.Errorf("creating client: %w", err)
	}
	coordination, err := coordinationclient.NewForConfigAndClient(config, httpClient)
	if err != nil {
		return fmt.Errorf("creating client: %w", err)
	}
	k := &kubelet{
		guest: g, settings: settings, image: system.image,
		core: core, leases: coordination.Leases(corev1.NamespaceNodeLease),
		startedAt: metav1.Now(),
	}
	k.pods = podLoop{kubelet: k, known: map[types.UID]*podState{}}
	if err := k.register(starting); err != nil {
		return ignoreCanceled(starting, err)
	}
	pause(ctx, g.shutdown, g.runtime.options.NetworkTime)
	k.loop(ctx)
	return nil
}

// untilShutdown returns a context that is also canceled when a shutdown is requested.
func untilShutdown(ctx context.Context, shutdown <-chan struct{}) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		select {
		case <-shutdown:
			cancel()
		case <-ctx.Done():
		}
	}()
	return ctx, cancel
}

// ignoreCanceled returns nil instead of err if ctx is done.
func ignoreCanceled(ctx context.Context, err error) error {
	select {
	case <-ctx.Done():
		return nil
	default:
		return err
	}
}

// register creates the Node and retries until the API server accepts it. A Node that
// already exists, for example after a reboot, keeps its labels and taints.
func (k *kubelet) register(ctx context.Context) error {
	for wait := 200 * time.Millisecond; ; wait = min(2*wait, 7*time.Second) {
		err := k.call(ctx, func(ctx context.Context) error {
			if err := k.readVersion(ctx); err != nil {
				return err
			}
			_, err := k.core.Nodes().Create(ctx, k.newNode(), metav1.CreateOptions{})
			return err
		})
		if err == nil || apierrors.IsAlreadyExists(err) {
			k.console.printf("kubelet: registered node %s with provider ID %q", k.settings.nodeName, k.settings.providerID)
			return nil
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		k.console.printf("kubelet: unable to register node %s: %v", k.settings.nodeName, err)
		if !pause(ctx, k.shutdown, wait) {
			return context.Canceled
		}
	}
}

// readVersion sets the version of the kubelet to that of the API server, because a kubelet
// must not be newer.
func (k *kubelet) readVersion(ctx context.Context) error {
	content, err := k.core.RESTClient().Get().AbsPath("/version").DoRaw(ctx)
	if err != nil {
		return fmt.Errorf("reading version of the API server: %w", err)
	}
	var info version.Info
	if err := json.Unmarshal(content, &info); err != nil {
		return fmt.Errorf("reading version of the API server: %w", err)
	}
	k.version = info.GitVersion
	return nil
}

// loop runs the sync loop until ctx is done or the guest has shut down.
func (k *kubelet) loop(ctx context.Context) {
	defer k.pods.stop()
	k.heartbeat(ctx)
	ticker := time.NewTicker(k.runtime.options.HeartbeatInterval)
	defer ticker.Stop()
	for {
		health, changed := k.health()
		if health == pvesim.HealthHung {
			// A hung guest sends no heartbeats and ignores ACPI shutdown.
			<-ctx.Done()
			return
		}
		timer := time.NewTimer(k.pods.nextDue())
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-k.shutdown:
			timer.Stop()
			k.shutDown(ctx)
			return
		case <-changed:
			if health, _ := k.health(); health != pvesim.HealthHung {
				k.heartbeat(ctx)
			}
		case <-ticker.C:
			k.heartbeat(ctx)
		case event, ok := <-k.pods.events():
			k.pods.observe(ctx, event, ok)
		case <-timer.C:
			k.pods.work(ctx)
		}
		timer.Stop()
	}
}

// shutDown terminates the pods if shutdownGracePeriod is set. Otherwise systemd kills
// the kubelet, and the status of the Node is not updated.
func (k *kubelet) shutDown(ctx context.Context) {
	k.console.printf("shutting down")
	if k.settings.config.ShutdownGracePeriod.Duration <= 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, k.settings.config.ShutdownGracePeriod.Duration)
	defer cancel()
	k.report(ctx, corev1.ConditionFalse, "KubeletNotReady", "node is shutting down")
	k.pods.terminateAll(ctx)
}

// heartbeat renews the Lease and updates the status of the Node. It does not recreate
// a deleted Node: a kubelet registers its Node only at startup.
func (k *kubelet) heartbeat(ctx context.Context) {
	var (
		node    *corev1.Node
		options metav1.GetOptions
	)
	if !k.lastReported.IsZero() {
		options.ResourceVersion = "0" // from the server's cache, which may not contain a new Node yet
	}
	err := k.call(ctx, func(ctx context.Context) (err error) {
		node, err = k.core.Nodes().Get(ctx, k.settings.nodeName, options)
		return err
	})
	switch {
	case apierrors.IsNotFound(err):
		if !k.nodeGone {
			k.console.printf("kubelet: node %s not found", k.settings.nodeName)
		}
		k.nodeGone = true
		return
	case err != nil:
		k.logError(ctx, "error getting node", err)
		return
	}
	k.nodeGone = false
	k.renewLease(ctx, node)
	status, reason, message := corev1.ConditionTrue, "KubeletReady", "kubelet is posting ready status"
	if health, _ := k.health(); health == pvesim.HealthSick {
		status, reason, message = corev1.ConditionFalse, "KubeletNotReady", "container runtime is down"
	}
	if time.Since(k.lastReported) > statusInterval || readiness(node) != status || node.Status.NodeInfo.BootID != k.bootID {
		k.report(ctx, status, reason, message)
	}
}

func readiness(node *corev1.Node) corev1.ConditionStatus {
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.Status
		}
	}
	return corev1.ConditionUnknown
}

// report patches the status fields that the kubelet owns. Conditions merge by type, so
// conditions of other controllers are kept. Addresses would also merge by type, but a
// Node can have two of one type, so the list is replaced. With an external cloud
// provider, addresses are not changed.
func (k *kubelet) report(ctx context.Context, ready corev1.ConditionStatus, reason, message string) {
	status := k.nodeStatus(ready, reason, message)
	addresses := []any{map[string]string{"$patch": "replace"}}
	for _, address := range status.Addresses {
		addresses = append(addresses, address)
	}
	fields := map[string]any{
		"capacity": status.Capacity, "allocatable": status.Allocatable, "conditions": status.Conditions,
		"nodeInfo": status.NodeInfo, "addresses": addresses,
	}
	if k.settings.externalProvider {
		delete(fields, "addresses")
	}
	patch, err := json.Marshal(map[string]any{"status": fields})
	if err != nil {
		k.logError(ctx, "error encoding node status", err)
		return
	}
	err = k.call(ctx, func(ctx context.Context) error {
		_, err := k.core.Nodes().PatchStatus(ctx, k.settings.nodeName, patch)
		return err
	})
	if err != nil {
		k.logError(ctx, "error updating node status", err)
		return
	}
	k.lastReported = time.Now()
}

// renewLease prevents the node lifecycle controller from marking the Node NotReady.
func (k *kubelet) renewLease(ctx context.Context, node *corev1.Node) {
	now := metav1.NowMicro()
	err := k.call(ctx, func(ctx context.Context) (err error) {
		if k.lease == nil {
			k.lease, err = k.leases.Get(ctx, k.settings.nodeName, metav1.GetOptions{})
		}
		if apierrors.IsNotFound(err) {
			k.lease, err = k.leases.Create(ctx, k.newLease(node, now), metav1.CreateOptions{})
			return err
		}
		if err != nil {
			return err
		}
		k.lease.Spec.RenewTime = &now
		k.lease, err = k.leases.Update(ctx, k.lease, metav1.UpdateOptions{})
		return err
	})
	if err != nil {
		k.lease = nil // another client may have changed or deleted it; read it next time
		k.logError(ctx, "failed to renew lease", err)
	}
}

func (k *kubelet) newLease(node *corev1.Node, now metav1.MicroTime) *coordinationv1.Lease {
	return &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{
			Name: node.Name,
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID,
			}},
		},
		Spec: coordinationv1.LeaseSpec{
			HolderIdentity:       new(node.Name),
			LeaseDurationSeconds: ptr.To[int32](leaseSeconds),
			RenewTime:            &now,
		},
	}
}

// call calls the API server with callTimeout.
func (k *kubelet) call(ctx context.Context, do func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return do(ctx)
}

// logError writes an error to the console unless ctx is done.
func (k *kubelet) logError(ctx context.Context, what string, err error) {
	if ctx.Err() == nil {
		k.console.printf("kubelet: %s: %v", what, err)
	}
}
