#pragma once
// The declarations that ProcessGroupGloo.hpp needs from Gloo's headers, which LibTorch does not ship although libtorch_cpu
// exports their symbols. ProcessGroupGloo.hpp holds all Gloo objects by pointer, so names and one base class suffice. The base
// class has the virtual functions, in the same order, of the Gloo that LibTorch 2.11 is built with; no object of it is created
// here.

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

namespace gloo {

namespace transport {
class Device;
class UnboundBuffer;
}  // namespace transport

class Context {
 public:
  void setTimeout(std::chrono::milliseconds timeout);
};

namespace rendezvous {

class Store {
 public:
  virtual ~Store();
  virtual void set(const std::string& key, const std::vector<char>& data) = 0;
  virtual std::vector<char> get(const std::string& key) = 0;
  virtual void wait(const std::vector<std::string>& keys) = 0;
  virtual void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& timeout) = 0;
};

}  // namespace rendezvous
}  // namespace gloo
