#pragma once
// apex.fp16_utils for LibTorch: conversion of networks to a 16-bit type.
#include <apex_cpp/fp16_utils/convert_network.h>
