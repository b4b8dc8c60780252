// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"context"
	"fmt"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/cloudprovider"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/bootdata"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/network"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// BootSource knows where boot data comes from.
type BootSource struct {
	// Reader reads past the cache: a cached one would keep every Secret of the
	// cluster in memory.
	Reader client.Reader
	Tokens *bootdata.Tokens
	// Namespace holds the ConfigMap kube-root-ca.crt.
	Namespace string
	// Version of the API server.
	Version string
}

// rootCAConfigMap is published by Kubernetes into every namespace.
const (
	rootCAConfigMap = "kube-root-ca.crt"
	rootCAKey       = "ca.crt"
)

// bootTemplates is what a NodeClass refers to.
type bootTemplates struct {
	bootdata.Templates
	values map[string]string
	// secret they come from: several classes, each with its own, are the rule.
	secret string
}

// read fetches what a NodeClass refers to.
func (b BootSource) read(ctx context.Context, options v1alpha1.MetadataOptions) (bootTemplates, error) {
	var out bootTemplates
	if options.TemplatesRef == nil {
		return out, fmt.Errorf("spec.metadataOptions.templatesRef is empty: type cdrom needs the Secret with the keys user-data, meta-data and network-config")
	}
	secret, err := b.secret(ctx, "templatesRef", *options.TemplatesRef)
	if err != nil {
		return out, err
	}
	out.Templates, out.secret = bootdata.TemplatesFrom(secret.Data), secret.Namespace+"/"+secret.Name
	out.values = map[string]string{}
	if options.ValuesRef != nil {
		if secret, err = b.secret(ctx, "valuesRef", *options.ValuesRef); err != nil {
			return out, err
		}
		for key, value := range secret.Data {
			out.values[key] = string(value)
		}
	}
	return out, nil
}

// render names the Secret that is at fault.
func (t bootTemplates) render(data bootdata.Data) (bootdata.Files, error) {
	files, err := bootdata.Render(t.Templates, data)
	if err != nil {
		return files, fmt.Errorf("rendering secret %s of spec.metadataOptions.templatesRef, %w", t.secret, err)
	}
	return files, nil
}

func (b BootSource) secret(ctx context.Context, field string, ref v1alpha1.SecretReference) (*corev1.Secret, error) {
	secret := &corev1.Secret{}
	if err := b.Reader.Get(ctx, types.NamespacedName{Namespace: ref.Namespace, Name: ref.Name}, secret); err != nil {
		if apierrors.IsForbidden(err) {
			err = fmt.Errorf("%w; to let the controller read there, add %s to bootDataNamespaces of the chart", err, ref.Namespace)
		}
		return nil, fmt.Errorf("reading secret %s/%s of spec.metadataOptions.%s, %w", ref.Namespace, ref.Name, field, err)
	}
	return secret, nil
}

func (b BootSource) rootCA(ctx context.Context) (string, error) {
	bundle := &corev1.ConfigMap{}
	key := types.NamespacedName{Namespace: b.Namespace, Name: rootCAConfigMap}
	if err := b.Reader.Get(ctx, key, bundle); err != nil {
		return "", fmt.Errorf("reading the cluster's CA from configmap %s, %w", key, err)
	}
	return bundle.Data[rootCAKey], nil
}

// Revoke deletes a Claim's join token.
func (b BootSource) Revoke(ctx context.Context, claim *karpv1.NodeClaim) error {
	return b.Tokens.Revoke(ctx, claim.UID)
}

// CheckBootData renders a NodeClass's templates for an imaginary VM, so that a
// broken template is found when it is written and not when a pod waits. Where Proxmox
// makes the boot data, it reads what Proxmox will be told.
func (p *Provider) CheckBootData(ctx context.Context, class *v1alpha1.ProxmoxNodeClass) error {
	if class.Spec.MetadataOptions.ProxmoxDrive() {
		_, err := p.Boot.cloudInit(ctx, class)
		return err
	}
	files, err := p.Boot.Preview(ctx, class, p.sample(class))
	if err == nil && class.Spec.MetadataOptions.Firmware() {
		_, err = ignitionOf(files)
	}
	return err
}

// ensureBootDrive renders the boot data and uploads it. Uploading again after a
// crash replaces the same file: its name belongs to the Claim.
func (l *launch) ensureBootDrive(ctx context.Context) error {
	if l.intent.ISOStorage == "" {
		return nil
	}
	image, err := l.bootImage(ctx)
	if err != nil {
		return err
	}
	task, err := l.client.UploadISO(ctx, l.intent.Host, l.intent.ISOStorage, isoName(l.id), image)
	if err == nil {
		_, err = l.Provider.wait(ctx, l.client, task, durationKey(l.intent.Region, l.intent.Host, l.intent.ISOStorage))
	}
	if err != nil {
		return fmt.Errorf("uploading the boot drive to storage %s of host %s, %w", l.intent.ISOStorage, l.intent.Host, err)
	}
	l.reach(PhaseBootDrive)
	return nil
}

func (l *launch) bootImage(ctx context.Context) ([]byte, error) {
	source, err := l.Boot.read(ctx, l.class.Spec.MetadataOptions)
	if err != nil {
		return nil, err
	}
	rootCA, err := l.Boot.rootCA(ctx)
	if err != nil {
		return nil, err
	}
	token, err := l.Boot.Tokens.Issue(ctx, bootdata.Claim{Name: l.claim.Name, UID: l.claim.UID})
	if err != nil {
		return nil, fmt.Errorf("issuing the join token, %w", err)
	}
	data, err := bootData(bootRequest{
		class: l.class, claim: l.claim, intent: l.intent, overhead: l.overhead(),
		values: source.values, token: token.Value(), rootCA: rootCA, version: l.Boot.Version,
		bridges: func(name string) proxmox.Bridge {
			return network.FindBridge(l.Inventory.View(), l.intent.Region, l.intent.Host, name)
		},
	})
	if err != nil {
		return nil, &LaunchError{Reason: ReasonBootData, err: err}
	}
	files, err := source.render(data)
	if err != nil {
		return nil, &LaunchError{Reason: ReasonBootData, err: err}
	}
	if l.intent.Firmware {
		return ignitionOf(files)
	}
	image, err := files.ISO()
	if err != nil {
		return nil, &LaunchError{Reason: ReasonBootData, err: fmt.Errorf("making the boot drive, %w", err)}
	}
	return image, nil
}

// overhead is what the instance type was advertised with. A type that has left the
// catalogue meanwhile is launched with the kubelet's own defaults.
func (l *launch) overhead() cloudprovider.InstanceTypeOverhead {
	it, ok := l.Types.Get(l.class, l.intent.InstanceType)
	if !ok || it.Overhead == nil {
		return cloudprovider.InstanceTypeOverhead{}
	}
	return *it.Overhead
}

type bootRequest struct {
	class                  *v1alpha1.ProxmoxNodeClass
	claim                  *karpv1.NodeClaim
	intent                 Intent
	overhead               cloudprovider.InstanceTypeOverhead
	values                 map[string]string
	token, rootCA, version string
	// bridges finds the Host's end of a network; nil where nothing is known of it.
	bridges func(name string) proxmox.Bridge
}

// bootData is everything that templates can refer to, for one VM.
func bootData(r bootRequest) (bootdata.Data, error) {
	taints := bootdata.RegistrationTaints(append(slices.Clone(r.claim.Spec.Taints), r.claim.Spec.StartupTaints...)...)
	kubelet, err := bootdata.NewKubeletConfiguration(bootdata.KubeletInput{
		ProviderID: r.intent.ProviderID(), Taints: taints,
		KubeReserved: r.overhead.KubeReserved, SystemReserved: r.overhead.SystemReserved, EvictionHard: r.overhead.EvictionThreshold,
		Settings: pinnedKubelet(kubeletSettings(r.class.Spec.KubeletConfiguration), r.intent, r.overhead),
	})
	if err != nil {
		return bootdata.Data{}, fmt.Errorf("making the kubelet's configuration, %w", err)
	}
	return bootdata.Data{
		Metadata: bootdata.Metadata{
			Hostname: r.claim.Name, InstanceID: strconv.Itoa(r.intent.VMID), InstanceUUID: string(r.claim.UID),
			InstanceType: r.intent.InstanceType, ProviderID: r.intent.ProviderID(),
			Region: r.intent.Region, Zone: r.intent.Host, Tags: r.class.Spec.Tags, NodeClass: r.class.Name,
		},
		Network:   guestNetwork(r.intent, r.bridges),
		Resources: bootdata.Resources{CPU: int64(r.intent.Cores), Memory: int64(r.intent.MemoryMiB) << 20},
		Kubernetes: bootdata.Kubernetes{
			Version: r.version, RootCA: r.rootCA, BootstrapToken: r.token,
			KubeletConfiguration: kubelet, NodeLabels: r.claim.Labels, NodeTaints: taints,
		},
		Shares: guestShares(r.class.Spec.Shares),
		Values: r.values,
	}, nil
}

func kubeletSettings(k *v1alpha1.KubeletConfiguration) bootdata.KubeletSettings {
	if k == nil {
		return bootdata.KubeletSettings{}
	}
	return bootdata.KubeletSettings(*k)
}
