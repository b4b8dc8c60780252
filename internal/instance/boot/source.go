// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package boot renders the boot data of VMs: the files that a guest reads at its first
// boot. Source reads what they are made of and renders them.
package boot

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/bootdata"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/vmconfig"
)

// Source reads what boot data is made of: Secrets, the cluster's CA, join tokens.
type Source struct {
	// Reader is not cached: a cache would hold every Secret of the cluster.
	Reader client.Reader
	Tokens *bootdata.Tokens
	// Namespace of the ConfigMap kube-root-ca.crt.
	Namespace string
	// Version of the API server.
	Version Version
}

// rootCAConfigMap is published by Kubernetes into every namespace.
const (
	rootCAConfigMap = "kube-root-ca.crt"
	rootCAKey       = "ca.crt"
	// sshKeysKey is the key of the Secret with SSH keys.
	sshKeysKey = "authorized_keys"
)

// Check renders the boot data of a NodeClass for a sample VM, so an invalid template is
// found before a VM needs it. If Proxmox makes the boot data, it checks the settings
// for that.
func (s Source) Check(ctx context.Context, view inventory.View, class *v1alpha1.ProxmoxNodeClass) error {
	if class.Spec.MetadataOptions.UsesCloudInitDrive() {
		_, err := s.CloudInit(ctx, class)
		return err
	}
	claim := sampleClaim(class)
	source, data, err := s.previewData(ctx, class, claim, plannedSample(view, class, claim), view)
	if err != nil {
		return err
	}
	files, err := source.render(data)
	if err == nil && class.Spec.MetadataOptions.UsesFWCfg() {
		_, err = ignition(files)
	}
	if err != nil {
		return err
	}
	return source.checkUnused(class, data, files)
}

// checkUnused returns an error if the templates do not pass settings of the class's
// interfaces to the guest.
func (t templates) checkUnused(class *v1alpha1.ProxmoxNodeClass, data bootdata.Data, files bootdata.Files) error {
	unused, err := bootdata.UnusedSettings(t.render, data, files)
	if err != nil {
		return err
	}
	var errs []error
	for _, setting := range unused {
		n := slices.IndexFunc(class.Spec.Network.Interfaces, func(i v1alpha1.VMInterface) bool { return guestName(i.Name) == setting.Interface })
		errs = append(errs, fmt.Errorf("spec.network.interfaces[%d].%s has no effect: %s of %s does not use it, or its format cannot express it; "+
			"add it to the template as the recipes do, or remove it from the class", n, setting.Field, setting.File, t.name))
	}
	return errors.Join(errs...)
}

// templates are the boot data templates of a NodeClass.
type templates struct {
	parts  []bootdata.Part
	values map[string]string
	// name of the object that they are stored in, with the field that refers to it, or of
	// the list of several.
	name string
}

// render names the object in errors: classes usually have different ones.
func (t templates) render(data bootdata.Data) (bootdata.Files, error) {
	files, err := bootdata.RenderParts(t.parts, data)
	if err != nil {
		return files, fmt.Errorf("rendering %s: %w", t.name, err)
	}
	return files, nil
}

// metadataOptions is the field of a NodeClass with the references to its Secrets.
const metadataOptions = "spec.metadataOptions"

func (s Source) templates(ctx context.Context, options v1alpha1.MetadataOptions) (templates, error) {
	switch {
	case options.TemplatesRef != nil:
		return s.readTemplates(ctx, metadataOptions, *options.TemplatesRef, options.ValuesRef)
	case len(options.TemplatesRefs) == 0:
		return templates{}, fmt.Errorf("spec.metadataOptions.templatesRef is empty: type cdrom needs the Secret with the keys user-data, meta-data and network-config")
	}
	parts, err := s.parts(ctx, options.TemplatesRefs)
	if err != nil {
		return templates{}, err
	}
	values, err := s.values(ctx, metadataOptions, options.ValuesRef)
	return templates{parts: parts, values: values, name: metadataOptions + ".templatesRefs"}, err
}

// readTemplates reads the Secrets that the references below a field name.
func (s Source) readTemplates(ctx context.Context, field string, templatesRef v1alpha1.SecretReference, valuesRef *v1alpha1.SecretReference) (templates, error) {
	secret, err := s.secret(ctx, field+".templatesRef", templatesRef)
	if err != nil {
		return templates{}, err
	}
	values, err := s.values(ctx, field, valuesRef)
	return templates{
		parts: []bootdata.Part{{Templates: bootdata.TemplatesFrom(secret.Data)}}, values: values,
		name: fmt.Sprintf("secret %s/%s of %s.templatesRef", secret.Namespace, secret.Name, field),
	}, err
}

// values reads the Secret that valuesRef below a field names, if it is set.
func (s Source) values(ctx context.Context, field string, ref *v1alpha1.SecretReference) (map[string]string, error) {
	values := map[string]string{}
	if ref == nil {
		return values, nil
	}
	secret, err := s.secret(ctx, field+".valuesRef", *ref)
	if err != nil {
		return nil, err
	}
	for key, value := range secret.Data {
		values[key] = string(value)
	}
	return values, nil
}

// parts reads the templates of several objects.
func (s Source) parts(ctx context.Context, refs []v1alpha1.TemplatesReference) ([]bootdata.Part, error) {
	var parts []bootdata.Part
	for n, ref := range refs {
		field := fmt.Sprintf("%s.templatesRefs[%d]", metadataOptions, n)
		part := bootdata.Part{Name: fmt.Sprintf("%s %s/%s of item %d", strings.ToLower(cmp.Or(ref.Kind, "Secret")), ref.Namespace, ref.Name, n)}
		if ref.IsConfigMap() {
			content, err := s.configMap(ctx, field, ref)
			if err != nil {
				return nil, err
			}
			part.Templates = bootdata.TemplatesFrom(content)
		} else {
			secret, err := s.secret(ctx, field, v1alpha1.SecretReference{Namespace: ref.Namespace, Name: ref.Name})
			if err != nil {
				return nil, err
			}
			part.Templates = bootdata.TemplatesFrom(secret.Data)
		}
		parts = append(parts, part)
	}
	return parts, nil
}

func (s Source) configMap(ctx context.Context, field string, ref v1alpha1.TemplatesReference) (map[string][]byte, error) {
	found := &corev1.ConfigMap{}
	if err := s.Reader.Get(ctx, types.NamespacedName{Namespace: ref.Namespace, Name: ref.Name}, found); err != nil {
		if apierrors.IsForbidden(err) {
			err = fmt.Errorf("%w; check the name, and to let the controller read it, add %s to bootDataConfigMaps.%s of the chart", err, ref.Name, ref.Namespace)
		}
		return nil, fmt.Errorf("reading configmap %s/%s of %s: %w", ref.Namespace, ref.Name, field, err)
	}
	content := map[string][]byte{}
	for key, value := range found.Data {
		content[key] = []byte(value)
	}
	return content, nil
}

func (s Source) secret(ctx context.Context, field string, ref v1alpha1.SecretReference) (*corev1.Secret, error) {
	secret := &corev1.Secret{}
	if err := s.Reader.Get(ctx, types.NamespacedName{Namespace: ref.Namespace, Name: ref.Name}, secret); err != nil {
		if apierrors.IsForbidden(err) {
			err = fmt.Errorf("%w; check the name, and to let the controller read it, add %s to bootDataSecrets.%s of the chart", err, ref.Name, ref.Namespace)
		}
		return nil, fmt.Errorf("reading secret %s/%s of %s: %w", ref.Namespace, ref.Name, field, err)
	}
	return secret, nil
}

func (s Source) rootCA(ctx context.Context) (string, error) {
	bundle := &corev1.ConfigMap{}
	key := types.NamespacedName{Namespace: s.Namespace, Name: rootCAConfigMap}
	if err := s.Reader.Get(ctx, key, bundle); err != nil {
		return "", fmt.Errorf("reading the cluster's CA from configmap %s: %w", key, err)
	}
	return bundle.Data[rootCAKey], nil
}

// CloudInit returns the cloud-init settings of a class with the SSH keys of its Secret;
// nil if Proxmox makes no drive for it.
func (s Source) CloudInit(ctx context.Context, class *v1alpha1.ProxmoxNodeClass) (*vmconfig.CloudInit, error) {
	out := vmconfig.NewCloudInit(class)
	options := class.Spec.MetadataOptions.CloudInit
	if out == nil || options == nil {
		return out, nil
	}
	for n, key := range out.SSHKeys {
		if err := proxmox.CheckSSHKey(key); err != nil {
			return nil, fmt.Errorf("reading spec.metadataOptions.cloudInit.sshKeys[%d]: %w", n, err)
		}
	}
	if options.SSHKeysRef == nil {
		return out, nil
	}
	more, err := s.sshKeys(ctx, *options.SSHKeysRef)
	out.SSHKeys = append(slices.Clip(out.SSHKeys), more...)
	return out, err
}

// sshKeys reads a file authorized_keys: a key per line, comments and empty lines.
func (s Source) sshKeys(ctx context.Context, ref v1alpha1.SecretReference) ([]string, error) {
	secret, err := s.secret(ctx, metadataOptions+".cloudInit.sshKeysRef", ref)
	if err != nil {
		return nil, err
	}
	content, ok := secret.Data[sshKeysKey]
	if !ok {
		return nil, fmt.Errorf("reading secret %s/%s of spec.metadataOptions.cloudInit.sshKeysRef: it has no key %s", ref.Namespace, ref.Name, sshKeysKey)
	}
	var keys []string
	for n, line := range strings.Split(string(content), "\n") {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		if err := proxmox.CheckSSHKey(line); err != nil {
			return nil, fmt.Errorf("reading secret %s/%s of spec.metadataOptions.cloudInit.sshKeysRef: %s, line %d: %w", ref.Namespace, ref.Name, sshKeysKey, n+1, err)
		}
		keys = append(keys, line)
	}
	return keys, nil
}
