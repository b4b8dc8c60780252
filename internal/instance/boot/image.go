// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package boot

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/cloudprovider"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/bootdata"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// Request describes the VM that boot data is rendered for.
type Request struct {
	Class    *v1alpha1.ProxmoxNodeClass
	Claim    *karpv1.NodeClaim
	Intent   instance.Intent
	Overhead cloudprovider.InstanceTypeOverhead
	// Capacity is that of the Node; empty if it is unknown.
	Capacity corev1.ResourceList
	// Bridges returns a bridge of the Host by name; nil if they are unknown.
	Bridges func(name string) proxmox.Bridge
}

// Image issues a join token, renders the boot data and returns the file to upload: an
// ISO, or Ignition for the firmware interface. The hash is that of the templates, as
// Source.Hash returns it. A *instance.LaunchError means that the templates are invalid.
func (s Source) Image(ctx context.Context, r Request) (image []byte, hash string, err error) {
	source, err := s.templates(ctx, r.Class.Spec.MetadataOptions)
	if err != nil {
		return nil, "", err
	}
	rootCA, err := s.rootCA(ctx)
	if err != nil {
		return nil, "", err
	}
	token, err := s.Tokens.Issue(ctx, bootdata.Claim{Name: r.Claim.Name, UID: r.Claim.UID})
	if err != nil {
		return nil, "", fmt.Errorf("issuing the join token: %w", err)
	}
	files, err := s.render(ctx, r, source, token.Value(), rootCA)
	if err != nil {
		return nil, "", &instance.LaunchError{Reason: v1alpha1.EventBootDataFailed, Err: err}
	}
	if r.Intent.Firmware {
		image, err = ignition(files)
		return image, source.hash(), err
	}
	if image, err = files.ISO(); err != nil {
		return nil, "", &instance.LaunchError{Reason: v1alpha1.EventBootDataFailed, Err: fmt.Errorf("creating the boot drive: %w", err)}
	}
	return image, source.hash(), nil
}

// ignition returns the user-data if it is Ignition, the only format that guests read
// from the firmware interface.
func ignition(files bootdata.Files) ([]byte, error) {
	if format := bootdata.FormatOf(files.UserData); format != bootdata.FormatIgnition {
		return nil, &instance.LaunchError{Reason: v1alpha1.EventBootDataFailed, Err: fmt.Errorf(
			"user-data is %s, but spec.metadataOptions.type fwcfg is for Ignition: write it in Butane or Ignition, or set type to cdrom", format)}
	}
	return files.UserData, nil
}

// render renders the templates with all data that they can refer to.
func (s Source) render(ctx context.Context, r Request, source templates, token, rootCA string) (bootdata.Files, error) {
	data, err := s.data(ctx, r, source, token, rootCA)
	if err != nil {
		return bootdata.Files{}, err
	}
	return source.render(data)
}

// data returns what the templates can refer to.
func (s Source) data(ctx context.Context, r Request, source templates, token, rootCA string) (bootdata.Data, error) {
	taints := bootdata.RegistrationTaints(append(slices.Clone(r.Claim.Spec.Taints), r.Claim.Spec.StartupTaints...)...)
	kubelet, err := newKubeletConfiguration(r, taints)
	if err != nil {
		return bootdata.Data{}, fmt.Errorf("creating the kubelet's configuration from NodeClass %s: %w", r.Class.Name, err)
	}
	metadata := instance.Metadata(r.Claim, r.Class, r.Intent)
	if metadata.Tags, err = instance.RenderTags(r.Claim, r.Class, r.Intent); err != nil {
		return bootdata.Data{}, err
	}
	return bootdata.Data{
		Metadata: metadata,
		Network:  guestNetwork(r.Intent, r.Bridges),
		Resources: bootdata.Resources{
			CPU: int64(r.Intent.Cores), Memory: int64(r.Intent.MemoryMiB) << 20,
			Hugepages1Gi: hugepages(r.Capacity, "1Gi", 1<<30), Hugepages2Mi: hugepages(r.Capacity, "2Mi", 2<<20),
		},
		Kubernetes: bootdata.Kubernetes{
			Version: s.Version(ctx), RootCA: rootCA, BootstrapToken: token,
			KubeletConfiguration: kubelet, NodeLabels: r.Claim.Labels, NodeTaints: taints,
		},
		Shares: guestShares(r.Class.Spec.Shares),
		Disks:  guestDisks(r.Intent.Disks),
		Values: source.values,
	}, nil
}

// hugepages returns the number of pages of a size, which is in bytes.
func hugepages(capacity corev1.ResourceList, size string, bytes int64) int64 {
	quantity := capacity[corev1.ResourceName(corev1.ResourceHugePagesPrefix+size)]
	return quantity.Value() / bytes
}

func guestDisks(disks []v1alpha1.Disk) []bootdata.Disk {
	var out []bootdata.Disk
	for _, d := range disks {
		out = append(out, bootdata.Disk{Name: d.Name, Device: d.DevicePath(), Size: d.GiB() << 30, MountPath: d.MountPath, FileSystem: d.FileSystemOrDefault()})
	}
	return out
}

func guestShares(shares []v1alpha1.Share) []bootdata.Share {
	var out []bootdata.Share
	for _, s := range shares {
		share := bootdata.Share{Tag: s.Mapping, MountPath: s.MountPath, Type: "virtiofs", Options: "defaults"}
		if s.IsPlan9() {
			share.Type, share.Options = "9p", "trans=virtio,version=9p2000.L"
		}
		out = append(out, share)
	}
	return out
}
