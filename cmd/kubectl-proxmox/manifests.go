// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
)

// sampleCA replaces the cluster's certificate authority in rendered boot data.
const sampleCA = "-----BEGIN CERTIFICATE-----\nMIIBsample\n-----END CERTIFICATE-----\n"

// manifests is a client.Reader of objects in files.
type manifests struct{ objects []client.Object }

var _ client.Reader = (*manifests)(nil)

// readManifests reads files and the YAML files of directories.
func readManifests(paths []string, systemNamespace string) (*manifests, error) {
	ca := &corev1.ConfigMap{Data: map[string]string{"ca.crt": sampleCA}}
	ca.Namespace, ca.Name = systemNamespace, "kube-root-ca.crt"
	m := &manifests{objects: []client.Object{ca}}
	for _, path := range paths {
		files := []string{path}
		if info, err := os.Stat(path); err == nil && info.IsDir() {
			if files, err = filepath.Glob(filepath.Join(path, "*.yaml")); err != nil {
				return nil, fmt.Errorf("listing %s: %w", path, err)
			}
		}
		for _, file := range files {
			content, err := os.ReadFile(file) //nolint:gosec // the path is a command line argument
			if err == nil {
				err = m.add(content)
			}
			if err != nil {
				return nil, fmt.Errorf("reading %s: %w", file, err)
			}
		}
	}
	return m, nil
}

// add adds the objects of a file. It skips unknown kinds, because files may contain
// other objects as well.
func (m *manifests) add(content []byte) error {
	decoder := serializer.NewCodecFactory(scheme.Scheme, serializer.EnableStrict).UniversalDeserializer()
	documents := yaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(content)))
	for {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		object, _, err := decoder.Decode(document, nil, nil)
		if runtime.IsNotRegisteredError(err) || runtime.IsMissingKind(err) {
			continue
		}
		if err != nil {
			return err
		}
		if secret, ok := object.(*corev1.Secret); ok {
			storeStrings(secret)
		}
		if o, ok := object.(client.Object); ok {
			m.objects = append(m.objects, o)
		}
	}
}

// storeStrings copies stringData to data, as the API server does.
func storeStrings(secret *corev1.Secret) {
	if secret.Data == nil {
		secret.Data = map[string][]byte{}
	}
	for key, value := range secret.StringData {
		secret.Data[key] = []byte(value)
	}
}

// classes returns the sorted names of all NodeClasses.
func (m *manifests) classes() []string {
	var names []string
	for _, o := range m.objects {
		if _, ok := o.(*v1alpha1.ProxmoxNodeClass); ok {
			names = append(names, o.GetName())
		}
	}
	slices.Sort(names)
	return names
}

// Get implements client.Reader.
func (m *manifests) Get(_ context.Context, key client.ObjectKey, into client.Object, _ ...client.GetOption) error {
	for _, o := range m.objects {
		if reflect.TypeOf(o) == reflect.TypeOf(into) && client.ObjectKeyFromObject(o) == key {
			reflect.ValueOf(into).Elem().Set(reflect.ValueOf(o.DeepCopyObject()).Elem())
			return nil
		}
	}
	kind := reflect.TypeOf(into).Elem().Name()
	return apierrors.NewNotFound(schema.GroupResource{Resource: "manifest of kind " + kind}, key.String())
}

// List implements client.Reader. It ignores the options.
func (m *manifests) List(_ context.Context, into client.ObjectList, _ ...client.ListOption) error {
	items, err := meta.GetItemsPtr(into)
	if err != nil {
		return err
	}
	list := reflect.ValueOf(items).Elem()
	for _, o := range m.objects {
		if object := reflect.ValueOf(o.DeepCopyObject()).Elem(); object.Type() == list.Type().Elem() {
			list.Set(reflect.Append(list, object))
		}
	}
	return nil
}
