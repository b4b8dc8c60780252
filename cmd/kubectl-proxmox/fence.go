// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	nodeutils "sigs.k8s.io/karpenter/pkg/utils/node"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/declared"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/observed"
)

// outOfService makes Kubernetes delete the pods of a Node that is shut down, and detach
// their volumes, without waiting for its kubelet.
var outOfService = corev1.Taint{Key: corev1.TaintNodeOutOfService, Value: "nodeshutdown", Effect: corev1.TaintEffectNoExecute}

// fence declares a host as powered off, or withdraws that.
type fence struct {
	kube      client.Client
	from      *clusters
	namespace string
	out       io.Writer
	region    string
	undo      bool
	dryRun    bool
	// launchHosts allows to use the hosts on which VMs were launched.
	launchHosts bool
	// detachTimeout limits the wait for the volumes of the Nodes.
	detachTimeout time.Duration
}

func newFence(cluster *kubeCluster) *cobra.Command {
	f := &fence{from: &clusters{}}
	command := &cobra.Command{
		Use:   "fence [REGION/]HOST",
		Short: "Declare that a host is powered off, so its NodeClaims can be deleted without it",
		Long: `Declare that a Proxmox host is powered off and does not start by itself.

The host is added to the ConfigMap ` + declared.FencingConfigMap + `, and the Nodes on it get the taint
` + corev1.TaintNodeOutOfService + `. Kubernetes then deletes the pods of the Nodes and detaches
their volumes. NodeClaims that are being deleted are finished without their VMs. When the host
is back, the controller deletes the VMs as orphans, and the host from the ConfigMap.

Power the host off first. If its VMs still run, two instances of a pod could write to the same
volume. The command refuses hosts with a Node that is Ready.`,
		Args: cobra.ExactArgs(1),
		RunE: func(command *cobra.Command, args []string) (err error) {
			if f.kube, _, err = cluster.connect(); err != nil {
				return err
			}
			f.namespace, f.out = systemNamespace(command, f.kube, f.namespace), command.OutOrStdout()
			return f.run(command.Context(), args[0])
		},
		ValidArgsFunction: completeFirst(cluster, classHosts),
	}
	f.from.flagsOr(cluster, command)
	flags := command.Flags()
	flags.StringVar(&f.region, "region", "", "region of the host, if two regions have a host with this name")
	flags.BoolVar(&f.undo, "undo", false, "remove the taints, and the host from the ConfigMap")
	flags.StringVar(&f.namespace, "system-namespace", "", "namespace of the ConfigMap "+declared.FencingConfigMap+systemNamespaceDefault)
	flags.DurationVar(&f.detachTimeout, "detach-timeout", time.Minute, "how long to wait until Kubernetes has detached the volumes of the nodes")
	flags.BoolVar(&f.launchHosts, "launch-hosts", false, "if Proxmox cannot be read, let each VM count as on the host that it was launched on; wrong for VMs that were migrated")
	flags.BoolVar(&f.dryRun, "dry-run", false, "show what would be changed")
	return command
}

// parseHost returns the host of an argument, and sets the region if it names one.
func (f *fence) parseHost(arg string) (string, error) {
	if !strings.Contains(arg, "/") {
		return arg, nil
	}
	name, err := parseHost(arg)
	if err != nil {
		return "", err
	}
	if f.region != "" && f.region != name.Region {
		return "", fmt.Errorf("host %s is not in region %s, which --region names", arg, f.region)
	}
	f.region = name.Region
	return name.Host, nil
}

func (f *fence) run(ctx context.Context, arg string) error {
	host, err := f.parseHost(arg)
	if err != nil {
		return err
	}
	claims, err := f.claims(ctx, host)
	if err != nil {
		return err
	}
	nodes, err := f.nodes(ctx, claims)
	if err != nil {
		return err
	}
	if !f.undo {
		if err := refuseReady(host, nodes); err != nil {
			return err
		}
	}
	began := time.Now() // the hosts of Nodes that are not Ready are off
	if !f.dryRun {
		if err := f.taintAll(ctx, nodes); err != nil {
			return err
		}
	}
	if !f.dryRun {
		if err := f.declare(ctx, observed.HostName{Region: f.region, Host: host}, began); err != nil {
			return err
		}
	}
	var remaining []string
	for _, claim := range claims {
		if err := f.report(claim, nodes[claim.Name]); err != nil {
			return err
		}
		if claim.DeletionTimestamp.IsZero() {
			remaining = append(remaining, claim.Name)
		}
	}
	if len(remaining) > 0 && !f.undo {
		_, _ = fmt.Fprintf(f.out, "to replace the nodes that are not being deleted yet, run: kubectl delete nodeclaim %s\n", strings.Join(remaining, " "))
	}
	return nil
}

// claims returns the NodeClaims on a host, and sets the region. With undo there may be none.
func (f *fence) claims(ctx context.Context, host string) ([]*karpv1.NodeClaim, error) {
	list := &karpv1.NodeClaimList{}
	if err := f.kube.List(ctx, list); err != nil {
		return nil, fmt.Errorf("listing NodeClaims: %w", err)
	}
	var out []*karpv1.NodeClaim
	regions, hosts := map[string]bool{}, map[string]bool{}
	hostOf, err := f.from.hostOfVMs(ctx)
	if err != nil && !f.launchHosts {
		return nil, fmt.Errorf("reading from Proxmox which VMs are on host %q: %w; if no host of the Proxmox cluster can be reached, and no VM was migrated, set --launch-hosts", host, err)
	}
	for i := range list.Items {
		claim := &list.Items[i]
		id, err := v1alpha1.ParseProviderID(claim.Status.ProviderID)
		if err != nil || (f.region != "" && id.Region != f.region) {
			continue
		}
		launched := claim.Labels[corev1.LabelTopologyZone]
		name := cmp.Or(hostOf(id), launched)
		if name != "" {
			hosts[name] = true
		}
		// HA may have restarted the VM on another host since.
		if name == host || f.undo && launched == host {
			out = append(out, claim)
			regions[id.Region] = true
		}
	}
	return out, f.setRegion(host, regions, hosts)
}

// setRegion sets the region to the only one that has NodeClaims on the host.
func (f *fence) setRegion(host string, regions, hosts map[string]bool) error {
	switch {
	case len(regions) == 1:
		f.region = slices.Collect(maps.Keys(regions))[0]
	case len(regions) > 1:
		return fmt.Errorf("host %[1]q is in several regions: use REGION/%[1]s, or set --region to one of %[2]s", host, strings.Join(slices.Sorted(maps.Keys(regions)), ", "))
	case !f.undo || f.region == "":
		return fmt.Errorf("no NodeClaim found for host %q; hosts with NodeClaims: %s", host, cmp.Or(strings.Join(slices.Sorted(maps.Keys(hosts)), ", "), "none"))
	}
	return nil
}

// nodes returns the Nodes of NodeClaims by the name of the NodeClaim.
func (f *fence) nodes(ctx context.Context, claims []*karpv1.NodeClaim) (map[string]*corev1.Node, error) {
	out := map[string]*corev1.Node{}
	for _, claim := range claims {
		if claim.Status.NodeName == "" {
			continue
		}
		node := &corev1.Node{}
		err := f.kube.Get(ctx, client.ObjectKey{Name: claim.Status.NodeName}, node)
		if client.IgnoreNotFound(err) != nil {
			return nil, fmt.Errorf("reading node %s: %w", claim.Status.NodeName, err)
		}
		if err == nil {
			out[claim.Name] = node
		}
	}
	return out, nil
}

// refuseReady returns an error if a Node is Ready: then its host is not powered off.
func refuseReady(host string, nodes map[string]*corev1.Node) error {
	var ready []string
	for _, node := range nodes {
		if nodeutils.GetCondition(node, corev1.NodeReady).Status == corev1.ConditionTrue {
			ready = append(ready, node.Name)
		}
	}
	if len(ready) == 0 {
		return nil
	}
	slices.Sort(ready)
	return fmt.Errorf("nodes on host %s are Ready: %s; power the host off and wait until they are NotReady (about a minute)", host, strings.Join(ready, ", "))
}

// taintAll taints Nodes and waits until their volumes are detached: Kubernetes waits six
// minutes for the volumes of a Node that does not exist any more.
func (f *fence) taintAll(ctx context.Context, nodes map[string]*corev1.Node) error {
	names := map[string]bool{}
	for _, node := range nodes {
		if err := f.taint(ctx, node); err != nil {
			return err
		}
		names[node.Name] = true
	}
	if f.undo {
		return nil
	}
	// The timeout ends the wait, not a call.
	err := wait.PollUntilContextTimeout(ctx, time.Second, f.detachTimeout, true, func(context.Context) (bool, error) {
		attachments := &storagev1.VolumeAttachmentList{}
		err := f.kube.List(ctx, attachments)
		return !slices.ContainsFunc(attachments.Items, func(a storagev1.VolumeAttachment) bool { return names[a.Spec.NodeName] }), err
	})
	if wait.Interrupted(err) && ctx.Err() == nil {
		_, err = fmt.Fprintf(f.out, "volumes are still attached after %s; Kubernetes detaches them a few minutes after their node is deleted\n", f.detachTimeout)
	}
	return err
}

// declare adds a host to the ConfigMap, or removes it.
func (f *fence) declare(ctx context.Context, name observed.HostName, since time.Time) error {
	var value any // null deletes a key
	if !f.undo {
		raw, err := json.Marshal(declared.Fence{Time: since.UTC().Truncate(time.Second)})
		if err != nil {
			return fmt.Errorf("encoding the entry of host %s: %w", name, err)
		}
		value = string(raw)
	}
	patch, err := json.Marshal(map[string]any{"data": map[string]any{name.Key(): value}})
	if err == nil {
		err = f.kube.Patch(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: f.namespace, Name: declared.FencingConfigMap}}, client.RawPatch(types.MergePatchType, patch))
	}
	if err != nil {
		return fmt.Errorf("writing ConfigMap %s/%s, which the Helm chart creates: %w", f.namespace, declared.FencingConfigMap, err)
	}
	return nil
}

// report prints what was done for a NodeClaim.
func (f *fence) report(claim *karpv1.NodeClaim, node *corev1.Node) error {
	verb, where := "fenced", ""
	if f.undo {
		verb = "no longer fenced"
	}
	if f.dryRun {
		verb += " (dry run)"
	}
	if node != nil {
		where = ", node " + node.Name
	}
	_, err := fmt.Fprintf(f.out, "nodeclaim %s %s: VM %s%s\n", claim.Name, verb, claim.Status.ProviderID, where)
	return err
}

func (f *fence) taint(ctx context.Context, node *corev1.Node) error {
	err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
		if err := f.kube.Get(ctx, client.ObjectKeyFromObject(node), node); err != nil {
			return client.IgnoreNotFound(err)
		}
		before := node.DeepCopy()
		node.Spec.Taints = slices.DeleteFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.MatchTaint(&outOfService) })
		if !f.undo {
			node.Spec.Taints = append(node.Spec.Taints, outOfService)
		}
		return client.IgnoreNotFound(f.kube.Patch(ctx, node, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})))
	})
	if err != nil {
		return fmt.Errorf("changing the taints of node %s: %w", node.Name, err)
	}
	return nil
}
