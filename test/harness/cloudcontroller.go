// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"context"
	"encoding/base64"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// uninitialized is the taint of a kubelet that waits for a cloud controller manager.
const uninitialized = "node.cloudprovider.kubernetes.io/uninitialized"

// providedIP is the annotation by which a kubelet passes --node-ip to a cloud controller manager.
const providedIP = "alpha.kubernetes.io/provided-node-ip"

// CloudController imitates the Proxmox cloud controller manager with its defaults: it finds a
// Node's VM by UUID, replaces the addresses by those that the kubelet provides, sets provider
// ID and labels, overwriting existing labels, and removes the taint.
type CloudController struct {
	Kube   client.Client
	API    *API
	Region string
}

// Run initializes Nodes until the context ends. It retries failures.
func (c *CloudController) Run(ctx context.Context) {
	for ctx.Err() == nil {
		nodes := &corev1.NodeList{}
		if err := c.Kube.List(ctx, nodes); err == nil {
			for i := range nodes.Items {
				if hasTaint(&nodes.Items[i]) {
					_ = c.initialize(ctx, &nodes.Items[i])
				}
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(200 * time.Millisecond):
		}
	}
}

func hasTaint(node *corev1.Node) bool {
	return slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.Key == uninitialized })
}

func (c *CloudController) initialize(ctx context.Context, node *corev1.Node) error {
	guests, err := c.API.Guests(ctx)
	if err != nil {
		return err
	}
	for _, vm := range guests {
		hardware := smbios(vm)
		if !strings.EqualFold(hardware["uuid"], node.Status.NodeInfo.SystemUUID) {
			continue
		}
		sku, err := base64.StdEncoding.DecodeString(hardware["sku"])
		if err != nil {
			return fmt.Errorf("decoding SKU of VM %d: %w", vm.VMID, err)
		}
		if err := c.setAddresses(ctx, node); err != nil {
			return err
		}
		changed := node.DeepCopy()
		if changed.Spec.ProviderID == "" {
			changed.Spec.ProviderID = fmt.Sprintf("proxmox://%s/%d", c.Region, vm.VMID)
		}
		changed.Labels[corev1.LabelTopologyRegion] = c.Region
		changed.Labels[corev1.LabelTopologyZone] = vm.Host
		changed.Labels[corev1.LabelInstanceTypeStable] = string(sku)
		changed.Spec.Taints = slices.DeleteFunc(changed.Spec.Taints, func(t corev1.Taint) bool { return t.Key == uninitialized })
		return c.Kube.Patch(ctx, changed, client.MergeFromWithOptions(node, client.MergeFromWithOptimisticLock{}))
	}
	return fmt.Errorf("no VM has the UUID %s", node.Status.NodeInfo.SystemUUID)
}

// setAddresses replaces the addresses of a Node.
func (c *CloudController) setAddresses(ctx context.Context, node *corev1.Node) error {
	before := node.DeepCopy()
	node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeHostName, Address: node.Name}}
	if provided := node.Annotations[providedIP]; provided != "" {
		for ip := range strings.SplitSeq(provided, ",") {
			node.Status.Addresses = append(node.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: ip})
		}
	}
	return c.Kube.Status().Patch(ctx, node, client.MergeFrom(before))
}

// smbios returns the fields of a VM's smbios1 option.
func smbios(vm Guest) map[string]string {
	text, _ := vm.Config["smbios1"].(string)
	fields := map[string]string{}
	for pair := range strings.SplitSeq(text, ",") {
		key, value, _ := strings.Cut(pair, "=")
		fields[key] = value
	}
	return fields
}
